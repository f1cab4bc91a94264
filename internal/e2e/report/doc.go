// Package report tests recast's reports, the pages of recast ui and those of the operator in a real browser.
package report
