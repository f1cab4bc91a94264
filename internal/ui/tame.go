package ui

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// painted is what paint writes.
var painted = regexp.MustCompile("\x1b\\[(?:0|1|2|3[123])m")

// Tame takes out of a text that may hold others' words what could steer a terminal:
// all but line feeds, tabs and the colours that are used here.
func Tame(text string) string {
	if strings.IndexFunc(text, steers) < 0 {
		return text
	}
	var tame strings.Builder
	for text != "" {
		at := painted.FindStringIndex(text)
		if at == nil {
			at = []int{len(text), len(text)}
		}
		tame.WriteString(strings.Map(func(r rune) rune {
			if steers(r) {
				return '?'
			}
			return r
		}, text[:at[0]]))
		tame.WriteString(text[at[0]:at[1]])
		text = text[at[1]:]
	}
	return tame.String()
}

// steers says whether a terminal may do anything else with a character than to show it.
func steers(r rune) bool {
	switch r {
	case '\n', '\t':
		return false
	case utf8.RuneError: // of bytes that are no text
		return true
	}
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)
}
