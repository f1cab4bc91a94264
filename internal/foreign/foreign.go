// Package foreign makes foreign text safe to print. The words of servers, programs and other runs must neither
// control a terminal nor look like lines of recast. [Line] cleans a text, [Error] an error.
package foreign

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

var (
	// sequences are ECMA-48's escape sequences: those with parameters (colours, cursor),
	// strings up to their end (titles, clipboard), and character sets.
	sequences = regexp.MustCompile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|[\\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\\\)|[ -/]+[0-~])")
	breaks    = regexp.MustCompile(` *\n[ \n]*`)
)

// Line turns text into one line of printable characters. It drops escape sequences, replaces white space that
// contains a line break or a tab by one space, and replaces other unprintable characters by U+FFFD.
func Line(text string) string {
	if strings.IndexFunc(text, unprintable) < 0 {
		return text
	}
	text = strings.Map(func(r rune) rune {
		switch {
		case r == ' ' || !unprintable(r):
			return r
		case unicode.IsSpace(r):
			return '\n'
		}
		return utf8.RuneError
	}, sequences.ReplaceAllString(text, ""))
	return breaks.ReplaceAllString(strings.Trim(text, "\n"), " ")
}

// unprintable is also true for bytes that are not UTF-8.
func unprintable(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }

// Lines applies Line to each line of text.
func Lines(text string) string {
	if strings.IndexFunc(text, unprintable) < 0 {
		return text
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = Line(line)
	}
	return strings.Join(lines, "\n")
}

// JSON escapes the unprintable characters in JSON. The data stays the same.
func JSON(text []byte) []byte {
	var out []byte
	done := 0
	for at := 0; at < len(text); {
		r, size := utf8.DecodeRune(text[at:])
		if r >= 0x7f && !unicode.IsPrint(r) {
			out = append(out, text[done:at]...)
			for _, unit := range utf16.AppendRune(nil, r) {
				out = fmt.Appendf(out, "\\u%04x", unit)
			}
			done = at + size
		}
		at += size
	}
	if done == 0 {
		return text
	}
	return append(out, text[done:]...)
}

// Error returns err with its message as one Line. errors.Is and errors.As still see err.
func Error(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	line := Line(text)
	if line == text {
		return err
	}
	return &lineError{err, line}
}

type lineError struct {
	error
	line string
}

func (e *lineError) Error() string { return e.line }
func (e *lineError) Unwrap() error { return e.error }
