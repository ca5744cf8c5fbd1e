"""Outputs with the one right reading of each, for maths and letters; then every key of AIME and GPQA in five styles.

Rules under test: the thought is never read; truncated, unparsed and wrong are three things; the last statement
decides. The lines are invented here.
"""

from __future__ import annotations

import os

import pytest

from resetcli.base.errors import UsageError
from resetcli.data.sources import DataSource, load_task_rows
from resetcli.evaluation.scoring.extraction import ThoughtMarkers
from resetcli.evaluation.scoring.score import Score, score_output

MATHS = [
    (r"...\boxed{033}", "33", "33", "correct"),
    (r"\boxed 5 ... \boxed{204}", "204", "204", "correct"),
    (r"\boxed 5", "5", "5", "correct"),
    (r"\boxed {204}", "204", "204", "correct"),
    (r"\boxed{m+n = 204}", "204", "204", "correct"),
    (r"\boxed{m+n = 204}", "205", "204", "wrong"),
    (r"\boxed{1,024}", "1024", "1024", "correct"),
    (r"\boxed{1{,}024}", "1024", "1024", "correct"),
    ("The answer is 1,024.", "1024", "1024", "correct"),
    ("1,024", "1024", "1024", "correct"),
    (r"\boxed{204^\circ}", "204", "204", "correct"),
    (r"\boxed{204^{\circ}}", "204", "204", "correct"),
    (r"\boxed{204}", r"204^\circ", "204", "correct"),
    (r"\boxed{\text{204}}", "204", "204", "correct"),
    (r"\boxed{\mathbf{204}}", "204", "204", "correct"),
    (r"\boxed{204\text{ cm}}", "204", "204", "correct"),
    (r"\fbox{204}", "204", "204", "correct"),
    (r"\boxed{18 dollars}", "18", "18", "correct"),
    (r"\boxed{\$18.00}", "18", "18", "correct"),
    (r"\boxed{10 pi}", "10", "10 pi", "wrong"),
    (r"\boxed{x=1, y=2}", "2", "x=1, y=2", "wrong"),
    (r"\boxed{\frac{\pi}{2}}", r"\pi/2", r"\frac{\pi}{2}", "correct"),
    (r"\boxed{\frac12}", "0.5", "1/2", "correct"),
    (r"\boxed{204} and \boxed{", "204", "204", "correct"),
    (r"\boxed{} so \boxed{}", "204", None, "unparsed"),
    ("The answer is 204.", "204", "204", "correct"),
    ("**Final Answer:** $204$", "204", "204", "correct"),
    ("The answer is 5 + 3 = 8.", "8", "8", "correct"),
    ("The answer is 3 or 5.", "3", None, "unparsed"),
    ("The answer is not 5.", "5", None, "unparsed"),
    ("The answer is unclear.", "5", None, "unparsed"),
    ("This gives **204** in all.", "204", "204", "correct"),
    ("**1.** First 3 of **7** and **9** more.", "9", None, "unparsed"),
    ("#### 72", "72", "72", "correct"),
    ("so maybe 204", "204", None, "unparsed"),
    (r"<think>\boxed{1}</think>The answer is 204.", "204", "204", "correct"),
    (r"<think>\boxed{204}</think>I do not know.", "204", None, "unparsed"),
    ("<think>One.\n\nQuestion: two? The answer is 3.</think>\n\nSo \\boxed{4}.\n\nQuestion: more", "4", "4", "correct"),
    (r"\boxed{204 = m+n}", "204", "204", "correct"),
    (r"\boxed{2 = x = y}", "2", "2", "correct"),
    (r"\boxed{1 024}", "1024", "1024", "correct"),
    (r"\boxed{11,\! 111}", "11111", "11111", "correct"),
    (r"\boxed{\large 204}", "204", "204", "correct"),
    (r"\boxed{\textcolor{red}{204}}", "204", "204", "correct"),
    (r"\boxed{\underline{204}}", "204", "204", "correct"),
    (r"\boxed{204 \pmod{1000}}", "204", "204", "correct"),
    (r"\boxed{204 \text{ (mod } 1000)}", "204", "204", "correct"),
    (r"\boxed{2 xy}", "2", "2 xy", "wrong"),
    (r"\boxed{0.333}", r"\frac13", "333/1000", "wrong"),
    (r"\boxed{20,4}", "204", "20,4", "wrong"),
    (r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", None, "correct"),
    (r"\boxed{evelyn}", r"\text{Evelyn}", "evelyn", "correct"),
    (r"\boxed{?}", "204", None, "unparsed"),
    (r"\boxed{\ }", "204", None, "unparsed"),
    ("The answer is 204. This answer is consistent with the bound of 300.", "204", "204", "correct"),
    ("The answer is 204. On reflection the answer is unclear.", "204", None, "unparsed"),
    ("The answer is either 3 or 5.", "3", None, "unparsed"),
    ("The answer is **204** apples because", "204", "204", "correct"),
    ("**Final Answer**\n\n204", "204", "204", "correct"),
    ("## Final Answer\n\\(204\\)", "204", "204", "correct"),
    ("The final answer is:\n\n$$\n204\n$$", "204", "204", "correct"),
    ("<answer>204</answer>", "204", "204", "correct"),
    ("Answer：204", "204", "204", "correct"),
    ("#### -10", "-10", "-10", "correct"),
    (r"#### \$72", "72", "72", "correct"),
    ("**204**<|im_end|>", "204", "204", "correct"),
    ("**m+n = 204**", "204", "204", "correct"),
    ("Thus m+n = **204**, with **m = 4**.", "204", "204", "correct"),
    ("m+n = 204", "204", "204", "correct"),
    ("The answer should be 204.", "204", "204", "correct"),
    ("The answer must therefore be 204.", "204", "204", "correct"),
    ("Our answer is, therefore, 204.", "204", "204", "correct"),
    ("The answer is equal to 204.", "204", "204", "correct"),
    ("The answer is 204 and not 205", "204", "204", "correct"),
    ("**Solution**\n\n1. **First**: 12 cases.\n2. **Second**: 8.\n\nThus **20**.", "20", "20", "correct"),
    ("**First** 3 **Second**", "3", None, "unparsed"),
    ("**204** and **205**", "204", None, "unparsed"),
    (r"\boxed{2 0 4}", "204", "2 0 4", "wrong"),
    (r"\boxed{\geq 5}", "5", r"\geq 5", "wrong"),
    (r"\boxed{\geq 5}", r"\ge 5", r"\geq 5", "correct"),
    (r"\boxed{2516_{9}}", "2516_8", "2516_{9}", "wrong"),
    (r"\boxed{2516_{8}}", "2516_8", "2516_{8}", "correct"),
    (r"\boxed{1.5 \text{ million}}", "1500000", "3/2", "correct"),
    (r"\boxed{£5}", "5", "5", "correct"),
    (r"\boxed{5 cm^{2}}", "5", "5", "correct"),
    ("The answer is $x = 5$ or $x = 6$.", "5", None, "unparsed"),
    ("I don't think the answer is 5.", "5", None, "unparsed"),
    ("The answer is 5. If the answer is 6, it fails. I first thought the answer was 7.", "5", "5", "correct"),
    ("6 is wrong\nAnswer: 5", "5", "5", "correct"),
    ("_Answer: 5_", "5", "5", "correct"),
    (r"\boxed{9^{9^{9^{9}}}}", "204", "9^{9^{9^{9}}}", "wrong"),
    # A number that goes on is not its first part.
    (r"The answer is 5 \times 10^3.", "5", r"5 \times 10^3", "wrong"),
    (r"The answer is 5 \times 10^3.", "5000", None, "correct"),
    (r"The answer is 2 \sqrt{3}", "2", r"2 \sqrt{3}", "wrong"),
    (r"The answer is 2 \sqrt{3}.", r"2\sqrt3", r"2 \sqrt{3}", "correct"),
    ("The answer is 2 pi.", "2", "2 pi", "wrong"),
    ("The answer is 5 x 10^3", "5", "5 x 10^3", "wrong"),
    ("The answer is 5 times 3", "5", None, "unparsed"),
    ("The answer is 3:4", "3", "3:4", "wrong"),
    ("The answer is 3:4", "3:4", "3:4", "correct"),
    ("The answer is 20:30.", "20", "20:30", "wrong"),
    ("The answer is 5 1/2", "5", "5 1/2", "wrong"),
    ("The answer is 5 or more", "5", None, "unparsed"),
    ("The answer is 5–7.", "5", "5-7", "wrong"),
    ("The answer is 5, 6.", "5", "5, 6", "wrong"),
    ("The answer is 5 < x", "5", "5 < x", "wrong"),
    (r"The answer is 5\% \times 3", "5", r"5\% \times 3", "wrong"),
    ("The answer is `5`.", "5", "5", "correct"),
    ("The answer is **`5`**", "5", "5", "correct"),
    ("The answer is 1.5 million", "1500000", "3/2", "correct"),
    (r"The answer is 5 \text{ cm}.", "5", "5", "correct"),
    ("The answer is 204 – the seats that are left.", "204", "204", "correct"),
    ("The answer is 204 - which is even.", "204", "204", "correct"),
    ("The answer is 204, 17 of which are red.", "204", "204", "correct"),
    ("The answer is 204\n\n1. Check: it is even.", "204", "204", "correct"),
    ("The answer is 5%.", "5", "5%", "correct"),
    # math-verify passes over these signs.
    (r"\boxed{5√2}", "5", r"5\sqrt{2}", "wrong"),
    (r"\boxed{5√2}", r"5\sqrt{2}", r"5\sqrt{2}", "correct"),
    (r"\boxed{√(13)/2}", r"\frac{\sqrt{13}}{2}", r"\sqrt{13}/2", "correct"),
    (r"\boxed{5²}", "5", "5^{2}", "wrong"),
    (r"\boxed{5²}", "25", "5^{2}", "correct"),
    (r"\boxed{5½}", "5", r"5\frac{1}{2}", "wrong"),
    (r"\boxed{½}", "0.5", "1/2", "correct"),
    (r"\boxed{5₈}", "5", "5_{8}", "wrong"),
    (r"\boxed{5–7}", "5", "5-7", "wrong"),
    (r"\boxed{π/2}", r"\frac{\pi}{2}", r"\pi /2", "correct"),
    # It reads these in part.
    (r"\boxed{5 \text{ hours } 30 \text{ minutes}}", "5", r"5 \text{ hours } 30 \text{ minutes}", "wrong"),
    (r"\boxed{5 \text{ h } 30 \text{ min}}", r"5\text{ h }20\text{ min}", r"5 \text{ h } 30 \text{ min}", "wrong"),
    (r"\boxed{5 \text{ h } 30 \text{ min}}", r"5\text{ h }30\text{ min}", None, "correct"),
    (r"\boxed{5\text{ cm and }6\text{ cm}}", "5", r"5\text{ cm and }6\text{ cm}", "wrong"),
    (r"\boxed{5 \text{ red, } 6 \text{ blue}}", "5", r"5 \text{ red, } 6 \text{ blue}", "wrong"),
    (r"\boxed{1 \text{ and } 3}", "1,3", None, "correct"),
    (r"\boxed{2\mathrm{x}+3}", "3+2x", None, "correct"),
    (r"\boxed{3\pi/2 \text{ cm}^2}", r"\frac{3\pi}{2}", None, "correct"),
    (r"\boxed{5..6}", "5", "5..6", "wrong"),
    (r"\boxed{5{,}5}", "5", "5{,}5", "wrong"),
    (r"\boxed{5-}", "5", "5-", "wrong"),
    # A key without a base is decimal; an answer may leave the base out that its key names.
    (r"\boxed{371_8}", "371", "371_8", "wrong"),
    (r"\boxed{371_{10}}", "371", "371_{10}", "correct"),
    (r"\boxed{371}", "371_8", "371", "correct"),
]

LETTERS = [
    ("<think>maybe answer: B?</think> **Answer:** C", "C"),
    ("Answer seems to be D", "D"),
    ("Answer seems unclear", None),
    ("Answer seems likely", None),
    ("The answer is not B", None),
    (r"\boxed{\text{C}}", "C"),
    (r"\boxed{c}", "C"),
    (r"The answer is $\boxed{\textbf{(C)}}$", "C"),
    ("**Answer:** C", "C"),
    ("**Answer: C**", "C"),
    ("Answer: **C**", "C"),
    ("(C)", "C"),
    ("C.", "C"),
    ("**C**", "C"),
    ("Answer: (C)", "C"),
    ("answer is (b)", "B"),
    ("the answer is a", None),
    ("Answer: A closer look is needed", None),
    ("Answer: A because it is", "A"),
    ("Answer: B or C", None),
    ("Answer: B, C", None),
    ("Answer is D, not C.", "D"),
    ("The answer is A. No: the answer is B.", "B"),
    ("Answer: A\n\nOn reflection the answer seems unclear", None),
    ("The correct option is **B**.", "B"),
    ("Therefore, C is the correct answer.", "C"),
    ("The answer is C. It is unclear whether B is correct.", "C"),
    ("A) x\nB) y\nC) z\nD) w", None),
    ("Answer: C) 3.2 eV", "C"),
    ("Answer: $LETTER", None),
    ("the answer cannot be B", None),
    ("Answer: C\n\nQuestion: none", "C"),
    ("Because", None),
    ("Answer: C-H activation", None),
    ("The answer is A's neighbour", None),
    ("The answer is 'C'.", "C"),
    ("Answer: C\n\nThis answer is supported by theory.", "C"),
    (r"\boxed{C}. This answer is consistent with the data.", "C"),
    ("The answer is C. The answer is not B.", "C"),
    ("The answer is B. No: the answer is not B.", None),
    ("Answer: none of the above", None),
    ("Answer: B/C", None),
    ("Perhaps the answer is A. Answer: B/C", None),
    ("answer: c", "C"),
    ("<answer>(C)</answer>", "C"),
    ("Answer：C", "C"),
    ("**Final Answer**\n\nC", "C"),
    ("I would go with option C.", "C"),
    ("My final choice is C.", "C"),
    ("Therefore, (C).", "C"),
    ("(C)<|im_end|>", "C"),
    ("If C is correct, then so is D", None),
    (r"Answer: A \boxed{A or C}", None),
    (r"\boxed{A \text{ and } C}", None),
    (r"\boxed{a, b}", None),
    (r"\boxed{A\cdot B}", None),
    (r"\boxed{C_6H_6}", None),
    (r"\boxed{\text{C: 3.2 eV}}", "C"),
    (r"\boxed{\text{Answer: }C}", "C"),
    (r"\boxed{[C]}", "C"),
    ("The answer, then, is C.", "C"),
    ("Answer choice: C", "C"),
    ("Thus the choice is (C).", "C"),
    ("C is the answer.", "C"),
    ("C must be correct.", "C"),
    ("We choose option C.", "C"),
    ("The correct answer is not A, B or D, so it is C", "C"),
    ("Answer: *C*", "C"),
    ("Answer: __C__", "C"),
    ("Answer: C_6H_6", None),
    ("Is the answer C?", None),
    ("The answer is B? I cannot say.", None),
    ("I don't think C is correct.", None),
    ("Let me check whether option C is correct.", None),
    ("Suppose the answer is C. Then it would be chiral.", None),
    ("I doubt that the answer is C.", None),
    ("A tempting but incorrect answer is C.", None),
    ("Neither A nor C is the correct answer.", None),
    ("Either A or C is correct.", None),
    ("The answer is C. Answer (A) is wrong, and so is (B).", "C"),
    ("The answer is C. I first thought the answer was A.", "C"),
    ("The answer is C, for if the answer was A, it would be blue.", "C"),
    ("B is wrong\nAnswer: C", "C"),
    ("If it is chiral, the answer is C.", "C"),
    ("The answer is C (or possibly D).", None),
    ("The answer is A rather than B.", "A"),
    ("_Answer: C_", "C"),
    ("The answer must therefore be C", "C"),
    ("The answer is likely to be C", "C"),
    ("The answer is most likely to be C.", "C"),
    ("The answer is unlikely to be C.", None),
    ("The answer must therefore be unclear", None),
    ("The correct choice would therefore be B.", "B"),
    ("The answer is B, and C is wrong", "B"),
    ("The answer is B, and C is possible", None),
    ("Compound C is the answer.", None),
    ("Therefore C is the answer.", "C"),
    ("Statement C is correct.", "C"),
    ("The answer is A 5% increase in mass", None),
    ("The answer is C 3.2 eV", "C"),
    ("The answer is A 3.2 eV", "A"),
    ("the answer is D₂O", None),
    ("the answer is C₆", None),
    ("The answer is C⁺.", None),
    (r"\boxed{C\ 12}", "C"),
    (r"\boxed{C 12}", "C"),
    (r"\boxed{C\, 3.2 \text{ eV}}", "C"),
    (r"\boxed{C\quad 12}", "C"),
    (r"\boxed{C12}", None),
    (r"\boxed{\text{A 5\% increase}}", None),
    (r"\boxed{\text{a 5\% increase}}", None),
]


@pytest.mark.parametrize(("text", "target", "answer", "why"), MATHS)
def test_maths(text, target, answer, why):
    got = score_output("math", text, target, seconds=3)
    assert got == Score(answer or got.answer if why == "correct" else answer, int(why == "correct"), why)


@pytest.mark.parametrize(("text", "answer"), LETTERS)
def test_letters(text, answer):
    got = score_output("letters", text, "C")
    why = "unparsed" if answer is None else "correct" if answer == "C" else "wrong"
    assert got == Score(answer, int(answer == "C"), why)


@pytest.mark.parametrize(
    ("text", "finish", "opened", "why"),
    [
        ("so maybe 204", "length", False, "truncated"),
        (r"\boxed{204} and", "length", False, "truncated"),
        (r"<think>\boxed{204}", "length", False, "truncated"),
        (r"<think>\boxed{204}", "stop", False, "unparsed"),
        (r"\boxed{204}", "length", True, "truncated"),
        (r"\boxed{204}", "stop", True, "unparsed"),
        (r"hm</think>\boxed{204}", "stop", True, "correct"),
        (r"<think>x</think>\boxed{204}. Let me also", "length", False, "correct"),
        (r"<think>x</think>\boxed{20", "length", False, "truncated"),
        ("<think>x</think>The answer is 20", "length", False, "truncated"),
        (r"<think>x</think>\boxed 204", "length", False, "truncated"),
        (r"<think>x</think>\boxed 204, and", "length", False, "correct"),
        ("<think>x</think>\\boxed{204}<think>once more", "stop", False, "unparsed"),
        (r"\boxed{204}", "error", False, "unparsed"),
        (r"\boxed{204}", None, False, "correct"),
        ("", "stop", False, "unparsed"),
    ],
)
def test_thoughts_and_the_token_limit(text, finish, opened, why):
    got = score_output("math", text, "204", finish, opened_in_prompt=opened)
    assert (got.why, got.score) == (why, int(why == "correct"))
    letters = score_output("letters", text.replace("204", "B").replace("20", "B"), "B", finish, opened_in_prompt=opened)
    assert (letters.why, letters.score) == (why, int(why == "correct"))


def test_other_markers_alternatives_and_kinds():
    markers = ThoughtMarkers("[THINK]", "[/THINK]")
    assert score_output("math", r"[THINK]\boxed{1}[/THINK]\boxed{2}", "2", markers=markers).score == 1
    assert score_output("math", r"[THINK]\boxed{2}", "2", markers=markers).why == "unparsed"
    assert score_output("math", r"\boxed{81}", "80", alt_answers=["81"]).score == 1
    assert score_output("math", r"\boxed{82}", "80", alt_answers=["81"]).score == 0
    assert score_output("letters", "Answer: E", "E", letters="ABCDE").score == 1
    with pytest.raises(UsageError, match="did you mean math"):
        score_output("maths", "", "1")


def maths_styles(key: str, other: str) -> list[str]:
    return [
        rf"<think>Perhaps \boxed{{{other}}}.</think>Hence \boxed{{{key}}}.",
        rf"So $m+n = \boxed{{{int(key):03d}}}$.",
        rf"<think>{other}?</think>" + "\n\n" + rf"\[\boxed {{m+n = {key}}}\]",
        f"<think>The answer is {other}.</think>The final answer is **{key}**.",
        f"It is {other}0 less, which leaves\n\n**{key}**",
    ]


def test_aime_keys_score_full_and_wrong_ones_nothing(shared_data):
    for row in load_task_rows("aime", DataSource(shared_data)).rows:
        wrong = str((int(row["target"]) + 7) % 1000)
        for good, bad in zip(maths_styles(row["target"], wrong), maths_styles(wrong, row["target"]), strict=True):
            assert score_output("math", good, row["target"], alt_answers=row["alt_answers"]).why == "correct", good
            assert score_output("math", bad, row["target"], alt_answers=row["alt_answers"]).why == "wrong", bad


def test_math500_keys_score_full(shared_data):
    """Every key in five styles; of the next key, in a box, only what is equal scores."""
    rows = load_task_rows("math500", DataSource(shared_data)).rows
    for row, following in zip(rows, rows[1:] + rows[:1], strict=True):
        key = row["target"]
        for text in (
            rf"<think>x</think>Hence \boxed{{{key}}}.",
            rf"\[ \boxed {{{key}}} \]",
            rf"So it is \fbox{{${key}$}}",
            f"The final answer is ${key}$.",
            rf"**Answer:** \({key}\)",
        ):
            assert score_output("math", text, key).why == "correct", text
        other = score_output("math", rf"\boxed{{{following['target']}}}", key)
        alike = following["target"] == key or {key, following["target"]} == {"5", "x=5"}
        assert other.why == ("correct" if alike else "wrong")


def letter_styles(key: str, other: str, text: str) -> list[str]:
    return [
        f"<think>Answer: {other}</think>**Answer:** {key}",
        rf"Of all, {other} is close. \boxed{{\text{{{key}}}}}",
        f"<think>({other})</think>\n({key})",
        f"The correct answer is **{key})** {text}",
        f"<think>\n\nQuestion: {other}?</think>\nAnswer: {key}. {text}",
    ]


def test_gpqa_keys_score_full_and_wrong_ones_nothing(shared_data):
    if not os.environ.get("RESET_GPQA_PASSWORD"):
        pytest.skip("RESET_GPQA_PASSWORD is not set")
    missed: list[tuple[int, int]] = []
    for index, row in enumerate(load_task_rows("gpqa", DataSource.resolve(shared_data)).rows):
        key, wrong = row["target"], "ABCD"["BCDA".index(row["target"])]
        texts = dict(zip("ABCD", row["choices"], strict=True))
        goods, bads = letter_styles(key, wrong, texts[key]), letter_styles(wrong, key, texts[wrong])
        for style, (good, bad) in enumerate(zip(goods, bads, strict=True)):
            scores = score_output("letters", good, key).why, score_output("letters", bad, key).why
            if scores != ("correct", "wrong"):
                missed.append((index, style))
    # Indices only: the questions are not to be shown.
    assert missed == []


def test_worked_solutions_of_other_sets_end_on_their_keys(shared_data):
    """MATH-500's solutions box their answers, GSM8K's end on "#### n": both independent of this code."""
    import json

    for line in (shared_data / "math500.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert score_output("math", row["solution"], row["answer"]).score == 1
    for line in (shared_data / "gsm8k_test.jsonl").read_text().splitlines():
        answer = json.loads(line)["answer"]
        assert score_output("math", answer, answer.rpartition("#### ")[2]).score == 1
