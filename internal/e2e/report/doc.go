// Package report tests recast's reports, and the pages of recast ui, in a real browser.
package report
