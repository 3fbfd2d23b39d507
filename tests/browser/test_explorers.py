"""The explorers as static pages in Chromium, from a file: mouse, keyboard, zoom, dark, no network, latency."""

import json
import math
import statistics

import pytest

from ampedu import static

BITS = {"format": "fp16", "value": "0.1", "code": "", "compare": ["bf16", "fp32"]}
BELL = {str(k): round(4e4 * math.exp(-(((k + 22) / 7) ** 2))) for k in range(-40, 1)}
RANGE = {"counts": BELL, "zeros": 7, "formats": ["fp16", "bf16", "e4m3fn"], "scale_log2": 0, "label": "gradients"}
CLICKS = """(times) => {
  const root = document.querySelector(".ampedu-explorer > div").shadowRoot;
  const took = [];
  for (let i = 0; i < times; i += 1) {
    const bits = root.querySelectorAll(".bit");
    const bit = bits[(i * 7) % bits.length];
    const before = bit.textContent;
    const start = performance.now();
    bit.click();
    root.querySelector(".card").getBoundingClientRect();  // the layout belongs to the answer
    took.push(performance.now() - start);
    if (bit.textContent === before) throw new Error("the click changed nothing");
  }
  return took;
}"""
EVERYTHING = """(values) => {
  const root = document.querySelector(".ampedu-explorer > div").shadowRoot;
  const [format, number] = [root.querySelector("select"), root.querySelector("input")];
  const enter = (node, value) => { node.value = value; node.dispatchEvent(new Event("change")); };
  const wrong = [];
  const look = (what) => {
    const text = root.querySelector(".card").textContent + root.querySelector(".figures").innerHTML;
    if (/undefined|null|\\[object|="NaN/.test(text)) wrong.push(what);
  };
  for (const name of [...format.options].map((option) => option.value)) {
    enter(format, name);
    for (const value of values) { enter(number, value); look(`${name} ${value}`); }
    for (const chip of root.querySelectorAll(".chip")) { chip.click(); look(`${name} ${chip.textContent}`); }
  }
  return wrong;
}"""
SHADOW = "document.querySelector('.ampedu-explorer > div').shadowRoot"
BACKGROUND = f"() => getComputedStyle({SHADOW}.querySelector('.card')).backgroundColor"
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture
def visit(watched, tmp_path):
    """Open an explorer from a file; at the end not one message on the console, and no request but the file itself."""
    problems, opened = [], []

    def open_page(name="bit_explorer", state=BITS, **options):
        file = tmp_path / f"{name}.html"
        file.write_text(static.page(name, state, "Explorer"), encoding="utf-8")
        view = watched(**({"viewport": {"width": 940, "height": 900}} | options))
        view.page.on("console", lambda message: problems.append(message.text))
        view.page.goto(file.as_uri())
        view.page.wait_for_selector(".card")
        opened.append((view, file.as_uri()))
        return view.page

    yield open_page
    assert problems == []
    for view, address in opened:
        assert view.requests == [address]


def shown(page):
    return page.locator(".value").inner_text()


def code(page):
    return page.get_by_label("code, or type bits").input_value()


def test_a_click_on_a_bit(visit):
    page = visit()
    assert (shown(page), code(page)) == ("= 0.0999755859375", "0x2e66")
    page.get_by_role("button", name="sign bit: 0").click()
    assert (shown(page), code(page)) == ("= −0.0999755859375", "0xae66")
    page.get_by_role("button", name="exponent bit worth 16: 0").click()
    assert shown(page) == "= −6552"  # 2^16 times as large
    assert page.get_by_label("real number").input_value() == "-6552"
    assert page.locator(".compare tbody tr").nth(1).inner_text().split("\t")[-2:] == ["−6560", "−0.25 ulp"]


def test_the_keyboard_alone_reaches_and_changes_bits(visit):
    page = visit(state=BITS | {"value": "1"})
    page.get_by_role("button", name="NaN").focus()
    page.keyboard.press("Tab")
    active = f"() => {SHADOW}.activeElement.getAttribute('aria-label')"
    assert page.evaluate(active) == "sign bit: 0"
    outline = page.evaluate(f"() => getComputedStyle({SHADOW}.activeElement).outlineWidth")
    assert outline == "3px"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    assert (page.evaluate(active), shown(page)) == ("exponent bit worth 16: 1", "+∞")
    page.keyboard.press("0")
    assert (page.evaluate(active), shown(page)) == ("exponent bit worth 8: 1", "= 1")
    page.keyboard.press("ArrowUp")
    assert shown(page) == "= 1.0009765625"
    page.keyboard.press("End")
    assert page.evaluate(active) == "mantissa bit worth 2^−10: 1"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert shown(page) == "= 0.99951171875"
    page.keyboard.press("Tab")
    assert page.evaluate(f"() => {SHADOW}.activeElement.className") != "bit"
    assert page.locator('.bit[tabindex="0"]').count() == 1


def test_numbers_and_codes_are_typed_and_wrong_ones_are_explained(visit):
    page = visit()
    number = page.get_by_label("real number")
    number.fill("1/3")
    number.press("Enter")
    assert (shown(page), code(page)) == ("= 0.333251953125", "0x3555")
    number.fill("1 + 2^-11")
    number.press("Enter")
    assert shown(page) == "= 1"
    assert "halfway between 1 and 1.0009765625" in page.locator(".story").inner_text()
    number.fill("one")
    number.press("Enter")
    assert "Cannot read" in page.get_by_role("alert").inner_text()
    assert (number.get_attribute("aria-invalid"), number.input_value(), shown(page)) == ("true", "one", "= 1")
    page.get_by_label("code, or type bits").fill("0 00000 0000000001")
    page.get_by_label("code, or type bits").press("Enter")
    assert shown(page) == "= 5.9604644775390625e−8" and number.get_attribute("aria-invalid") is None


@pytest.mark.parametrize(
    ("label", "value", "sentence"),
    [
        ("largest", "= 65504", "From 65520 on"),
        ("smallest subnormal", "= 5.9604644775390625e−8", "underflow"),
        ("0.1", "= 0.0999755859375", "0.4 ulp below"),
        ("2049", "= 2048", "the tie goes to the even mantissa"),
        ("65520", "+∞", "the largest value of fp16"),
        ("NaN", "NaN", "2046 codes"),
    ],
)
def test_presets_tell_their_story(visit, label, value, sentence):
    page = visit(state=BITS | {"value": "3"})
    page.get_by_role("button", name=label, exact=True).click()
    assert shown(page) == value
    assert sentence in page.locator(".story").inner_text()


def test_every_format_takes_every_kind_of_number(visit):
    values = [
        "0",
        "-0",
        "0.1",
        "-1/3",
        "1e-320",
        "-1e308",
        "inf",
        "-inf",
        "nan",
        "448",
        "465",
        "248",
        "-7",
        "5",
        "2^-133",
    ]
    assert visit(state=BITS | {"compare": ["e2m1", "e8m0", "e4m3fnuz"]}).evaluate(EVERYTHING, values) == []


def test_formats_are_compared_swapped_and_removed(visit):
    page = visit()
    page.get_by_role("combobox", name="format", exact=True).select_option("e2m1")
    assert shown(page) == "= 0"
    page.get_by_role("button", name="NaN").click()
    assert "has no NaN" in page.get_by_role("alert").inner_text()
    page.get_by_role("button", name="bf16", exact=True).click()
    assert page.get_by_role("combobox", name="format", exact=True).input_value() == "bf16"
    page.get_by_role("button", name="Stop comparing with fp32").click()
    page.get_by_label("Format to compare with").select_option("e8m0")
    page.get_by_role("button", name="compare", exact=True).click()
    assert page.locator(".compare tbody th").all_inner_texts() == ["bf16", "e2m1 ×", "e8m0 ×"]


@pytest.mark.parametrize("state", [BITS, {"format": "fp64", "value": "0.1", "compare": ["fp32", "tf32", "e4m3fn"]}])
def test_every_click_is_answered_before_it_returns(visit, state, capsys):
    page = visit(state=state)
    took = page.evaluate(CLICKS, 200)  # throws if a click changes nothing
    with capsys.disabled():
        print(f"\nclick, {state['format']}: median {statistics.median(took):.1f} ms, longest {max(took):.1f} ms")


@pytest.mark.parametrize("name", ["e2m1", "fp16", "fp64"])
def test_nothing_overflows_at_400_percent_zoom(visit, name):
    # 1280 pixels at 400 % are 320 pixels of the page (WCAG 2.2, success criterion 1.4.10).
    page = visit(state=BITS | {"format": name, "compare": ["fp32", "e8m0"]}, viewport={"width": 320, "height": 256})
    for value in ("0.1", "5e-324", "-1.7976931348623157e308", "inf"):
        page.get_by_label("real number").fill(value)
        page.get_by_label("real number").press("Enter")
        assert page.evaluate(OVERFLOW) == 0, value
        for summary in page.locator("summary:visible").all():
            summary.click()
            assert page.evaluate(OVERFLOW) == 0, value


@pytest.mark.parametrize("name", ["static", "zoom400", "range", "range-zoom400"])
def test_screenshots(watched, tmp_path, name):
    kind = "range_explorer" if name.startswith("range") else "bit_explorer"
    file = tmp_path / f"{name}.html"
    file.write_text(static.page(kind, RANGE if kind == "range_explorer" else BITS, "Explorer"), encoding="utf-8")
    small = {"viewport": {"width": 320, "height": 256}, "device_scale_factor": 4}
    view = watched(**(small if "zoom" in name else {"viewport": {"width": 1200, "height": 900}}))
    view.page.goto(file.as_uri())
    view.page.locator(".picture svg").first.wait_for()
    view.shot(name, whole="zoom" in name)


def test_dark_and_light_follow_the_page(visit):
    dark = visit(color_scheme="dark").evaluate(BACKGROUND)
    page = visit(color_scheme="light")
    light = page.evaluate(BACKGROUND)
    assert (dark, light) == ("rgb(23, 27, 32)", "rgb(255, 255, 255)")
    page.evaluate("() => { document.body.style.background = '#111' }")  # as a theme switch of a notebook does
    page.wait_for_function(f"({BACKGROUND})() === 'rgb(23, 27, 32)'")


def test_what_python_sets_is_shown_and_what_is_clicked_goes_back(visit):
    page = visit()
    script = static.module("bit_explorer").replace("export default", "window.explorer =")
    page.evaluate(f"() => {{ {script} }}")
    result = page.evaluate(
        """() => {
          const state = {format: "fp16", value: "1", code: "", compare: []}, heard = {};
          const model = {
            get: (name) => state[name], set: (name, value) => { state[name] = value; }, save_changes() {},
            on: (name, react) => { heard[name] = react; }, off: (name) => { delete heard[name]; },
          };
          const el = document.createElement("div");
          document.body.append(el);
          const stop = window.explorer.render({ model, el });
          const root = el.firstChild.shadowRoot;
          root.querySelectorAll(".bit")[15].click();
          const clicked = JSON.stringify(state);
          state.value = "1/3"; heard["change:value"]();
          const value = root.querySelector(".value").textContent;
          state.code = "0x7bff"; heard["change:code"]();
          const code = root.querySelector(".value").textContent;
          model.save_changes = () => { throw new Error("no kernel"); };
          console.info = () => {};
          root.querySelectorAll(".bit")[0].click();
          const alone = root.querySelector(".value").textContent;
          stop();
          return [clicked, value, code, alone, Object.keys(heard).length];
        }"""
    )
    clicked = {"format": "fp16", "value": "1.0009765625", "code": "0x3c01", "compare": []}
    assert json.loads(result[0]) == clicked
    assert result[1:] == ["= 0.333251953125", "= 65504", "= −65504", 0]


def test_the_loss_scale_moves_the_histogram(visit):
    page = visit("range_explorer", RANGE)
    row = page.locator(".compare tbody tr").first
    total = sum(BELL.values())
    lost = sum(count for k, count in BELL.items() if int(k) < -25) / total
    assert row.inner_text().split("\t")[:2] == ["fp16", f"{100 * lost:.1f} %"]
    slider = page.get_by_label("loss scale")
    slider.focus()
    for _ in range(16):
        page.keyboard.press("ArrowRight")
    assert page.locator("output").inner_text().replace("\n", "") == "216 = 65536"
    over = sum(count for k, count in BELL.items() if int(k) + 16 > 15) / total
    assert over > 0 and "(inf)" in row.inner_text()
    page.get_by_role("button", name="bf16").click()
    assert "in bf16: 0 % of the values become zero" in page.locator(".story").inner_text()
    assert page.locator("rect.overflow").count() > 0


def test_the_range_explorer_at_400_percent_zoom_and_without_values(visit):
    page = visit("range_explorer", RANGE, viewport={"width": 320, "height": 256})
    assert page.evaluate(OVERFLOW) == 0
    page = visit("range_explorer", RANGE | {"counts": {}})
    assert page.locator(".story").inner_text() == "No values yet."
