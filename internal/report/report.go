// Package report draws one run as one HTML file: for whoever was not there, on a phone
// or on paper. Nothing in it is fetched from anywhere, and it needs no script.
package report

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline"
)

// Run is what a report is made of.
type Run struct {
	Past    pipeline.PastRun
	Story   story.Story
	Now     time.Time // in whose time zone all times are told
	Version string    // of the recast that makes it
	// Hide takes secrets out of what others have written.
	Hide func(string) string
}

//go:embed page.gohtml page.css
var files embed.FS

// Write draws the run.
func Write(w io.Writer, r Run) error {
	css, err := files.ReadFile("page.css")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	v := look(r)
	page, err := template.New("page.gohtml").Funcs(template.FuncMap{
		"css":   func() template.CSS { return template.CSS(css) },
		"hide":  r.Hide,
		"clock": func(t time.Time) string { return clock(t.In(r.Now.Location()), v.days()) },
		"stamp": func(t time.Time) string { return stamp(t.In(r.Now.Location())) },
		"short": words.Short,
		"join":  strings.Join,

		"expected": outageOf,
		"lasted":   func(s float64) string { return took(time.Duration(s * float64(time.Second))) },
	}).ParseFS(files, "page.gohtml")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	var text strings.Builder
	if err := page.Execute(&text, v); err != nil {
		return fmt.Errorf("report of run %s: %w", r.Past.ID, err)
	}
	_, err = io.WriteString(w, foreign.Lines(text.String()))
	return err
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return t.Format("2006-01-02 15:04:05 -07:00")
}

// clock is a time of day, and of which one where there are several.
func clock(t time.Time, several bool) string {
	switch {
	case t.IsZero():
		return "–"
	case several:
		return t.Format("01-02 15:04:05")
	}
	return t.Format("15:04:05")
}

// took is a duration as people say it: to the second, and to tenths where there are few.
func took(d time.Duration) string {
	switch {
	case d <= 0:
		return "0s"
	case d < 100*time.Millisecond:
		return "<0.1s"
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Round(100*time.Millisecond).Seconds(), 'f', -1, 64) + "s"
	}
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "h0m0s") {
		return strings.TrimSuffix(text, "0m0s")
	}
	if strings.HasSuffix(text, "m0s") {
		return strings.TrimSuffix(text, "0s")
	}
	return text
}

func seconds(n int) string { return took(time.Duration(n) * time.Second) }
