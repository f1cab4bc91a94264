// Package style is the look of reports and of pages in a browser.
package style

import _ "embed"

// CSS is the stylesheet. Its classes "good", "open" and "bad" colour the state of something.
//
//go:embed style.css
var CSS string
