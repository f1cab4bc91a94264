// Package runbooks holds a page for each code of package fault, to be read in a
// browser, and embedded for the night on which there is none.
package runbooks

import (
	"embed"
	"strings"
)

//go:embed *.md
var pages embed.FS

// URL is where the page of a code is on the web.
func URL(code string) string {
	return "https://github.com/recast-sh/recast/blob/main/docs/runbooks/" + code + ".md"
}

// Page is the page of a code, in Markdown.
func Page(code string) (text string, found bool) {
	b, err := pages.ReadFile(code + ".md")
	return string(b), err == nil && code != index
}

// index is the page about the pages.
const index = "README"

// Title says in a few words what a code is about: the heading of its page.
func Title(code string) string {
	text, _ := Page(code)
	heading, _, _ := strings.Cut(text, "\n")
	_, title, _ := strings.Cut(heading, ": ")
	return title
}
