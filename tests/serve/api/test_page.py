"""The demo page in a real browser, where chromium and playwright are installed; always in `make test-browser`."""

from running import core, language_model, running

from elman.tasks.serving_numbers import ServedNumbers
from elman.tasks.text.serving import ServedText


def test_type_stream_fork_and_roll_back(browser):
    with running({"book": ServedText(language_model()), "gru": ServedNumbers.of_core(core())}) as server:
        page = browser.new_page()
        wrong, asked = [], []
        page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: wrong.append(str(e)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(server.url)
        page.wait_for_selector("html[data-ready=yes]")
        assert "book reads a text" in page.inner_text("#about")
        page.click("#new")
        box = page.locator("article").first
        box.locator("textarea").fill("Once upon")
        box.locator("[data-act=read]").click()
        box.locator("[data-fact=version]:text-is('1')").wait_for()
        assert box.locator("pre").inner_text() == "Once upon"
        assert "bytes" in box.locator("[data-fact=state]").inner_text()
        box.locator("[data-act=write]").click()
        box.locator("[data-fact=version]:text-is('2')").wait_for()
        assert box.locator("[data-fact=position]").inner_text() == "109"
        written = box.locator("pre").text_content()
        assert written.startswith("Once upon") and len(written) > 50
        box.locator("[data-act=fork]").click()
        page.locator("article").nth(1).wait_for()
        assert page.locator("article").nth(1).locator("pre").text_content() == written
        box.locator("[data-act=back]").click()
        box.locator("[data-fact=position]:text-is('9')").wait_for()
        assert box.locator("pre").text_content() == "Once upon"
        box.locator("[data-act=back]").click()
        box.locator("[data-act=back]").click()
        page.locator("#message:has-text('where the session started')").wait_for()
        page.select_option("#model", "gru")
        page.click("#new")
        numbers = page.locator("article").nth(2)
        numbers.locator("textarea").fill("[[0.5], [1]]")
        numbers.locator("[data-act=read]").click()
        numbers.locator("[data-fact=position]:text-is('2')").wait_for()
        assert numbers.locator("[data-act=write]").count() == 0
        box.locator("textarea").fill(" a time")  # its model is its own, whichever is chosen above
        box.locator("[data-act=read]").click()
        box.locator("[data-fact=position]:text-is('7')").wait_for()
        page.locator("article").nth(1).locator("[data-act=remove]").click()
        page.locator("article").nth(2).wait_for(state="detached")
        assert wrong == [] and all(url.startswith((server.url, "data:")) for url in asked), (wrong, asked)
        page.close()
