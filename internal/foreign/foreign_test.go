package foreign

import (
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/recast-sh/recast/internal/sim/must"
)

func TestLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                     "",
		"plain – text,  spaces and all":        "plain – text,  spaces and all",
		"  indented":                           "  indented",
		"a\r\nb\n\n\tc\n":                      "a b c",
		"a \u2028b\u2029c\u0085d\u00a0e\vf\fg": "a b c d e f g",
		"\x1b[31mred\x1b[0m, \x1b[38;5;1m\x1b[2Jcleared": "red, cleared",
		"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b":       "ab",

		"\x1b(B\x1b[mtput":            "tput",
		"\x1b\x1b[31m[2Jnested":       "\ufffd[2Jnested",
		"\x1b]0;no end":               "\ufffd]0;no end",
		"a\x00b\x07c\x7f":             "a\ufffdb\ufffdc\ufffd",
		"\x9b2J, \u009b2J, \u202egpj": "\ufffd2J, \ufffd2J, \ufffdgpj",
		"a\ufeff\u200bb":              "a\ufffd\ufffdb",
	} {
		got := Line(text)
		must.Hold(t, got == want, "%q became %q, want %q", text, got, want)
	}
}

func TestPlainTextIsNotCopied(t *testing.T) {
	text := strings.Repeat("storage 'nas1' does not exist – ", 10)
	err := errors.New(text)
	if n := testing.AllocsPerRun(100, func() {
		must.Hold(t, Line(text) == text && Lines(text) == text && Error(err) == err, "it was changed")
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	const text = "the plan:\n  wk1: \x1b[31mno\x1b[0m\u2028x\n"
	got, want := Lines(text), "the plan:\n  wk1: no x\n"
	must.Hold(t, got == want, "%q, want %q", got, want)
}

func TestError(t *testing.T) {
	t.Parallel()
	must.Hold(t, Error(nil) == nil, "no error became one")
	err := Error(&fs.PathError{Op: "open", Path: "a\nb", Err: fs.ErrNotExist})
	must.Hold(t, err.Error() == "open a b: file does not exist", "%q", err)
	_, ok := errors.AsType[*fs.PathError](err)
	must.Hold(t, ok && errors.Is(err, fs.ErrNotExist), "the error itself is not seen")
}

func TestJSON(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"plain", "é → 🙂", "\x1b[31m\u009b\u202e\x7f\u200d\U000e0001 \xff"} {
		plain := must.Get(json.Marshal(text))(t)
		safe := JSON(plain)
		must.Hold(t, Line(string(safe)) == string(safe), "%q is printed as %q", text, safe)
		var want, got string
		err := errors.Join(json.Unmarshal(plain, &want), json.Unmarshal(safe, &got))
		must.Hold(t, err == nil && got == want, "%s says %q, not %q: %v", safe, got, want, err)
	}
}

func FuzzLine(f *testing.F) {
	for _, text := range []string{"plain", "a\r\n\tb", "\x1b[31m\x1b]0;t\x07\x1b(B", "\x1b\x1b[m[2J\u202e\x9b\u2028", " \n \x1b[m\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		line := Line(text)
		must.Hold(t, utf8.ValidString(line) && Line(line) == line, "%q became %q, and that %q", text, line, Line(line))
		for _, r := range line {
			must.Hold(t, !unicode.IsControl(r) && !unicode.Is(unicode.Bidi_Control, r) && r != '\u2028' && r != '\u2029',
				"%q became %q", text, line)
		}
		lines := Lines(text)
		must.Hold(t, strings.Count(lines, "\n") == strings.Count(text, "\n"), "%q has other lines than %q", lines, text)
	})
}
