// Package report tests recast's reports in a real browser.
package report
