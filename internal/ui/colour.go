package ui

import (
	"crypto/rand"
	"io"
	"os"
)

// The colours of words that matter: red for what is lost, deleted or refused,
// yellow for what is stale and changes, green for what is fine.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	bold   = "1"
	dim    = "2"
)

// coloured says whether output to w has colours: on a terminal, unless NO_COLOR
// (no-color.org) is set; elsewhere only with CLICOLOR_FORCE (bixense.com/clicolors).
func coloured(w io.Writer) bool {
	if os.Getenv("NO_COLOR") != "" {
		return false
	}
	if force := os.Getenv("CLICOLOR_FORCE"); force != "" && force != "0" {
		return true
	}
	return IsTerminal(w) && os.Getenv("TERM") != "dumb"
}

func (p *page) paint(colour, s string) string {
	if !p.colour || colour == "" || s == "" {
		return s
	}
	return mark + colour + "m" + s + mark + "0m"
}

// mark stands for the start of a colour's escape sequence until foreign escape sequences
// are removed from the line. It is random, so foreign text can't contain it.
var mark = rand.Text()
