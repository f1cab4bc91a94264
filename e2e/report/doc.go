// Package report opens recast's reports in a real browser: see the tests.
package report
