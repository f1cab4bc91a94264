// Package report writes the report of one [Run] as one HTML file, readable on a phone and
// on paper. The file loads nothing from the network, and needs no script.
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
	"github.com/recast-sh/recast/internal/style"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline/past"
)

// Run is the data of a report.
type Run struct {
	Past    past.Run
	Story   story.Story
	Now     time.Time // its time zone is used for all times
	Version string    // of the recast that writes it
	// Hide removes secrets from foreign text.
	Hide func(string) string
}

//go:embed page.gohtml
var files embed.FS

// Write writes the report.
func Write(w io.Writer, r Run) error {
	v := look(r)
	page, err := template.New("page.gohtml").Funcs(template.FuncMap{
		"css":   func() template.CSS { return template.CSS(style.CSS) },
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

// clock is a time of day, with the date if the run spans several days.
func clock(t time.Time, several bool) string {
	switch {
	case t.IsZero():
		return "–"
	case several:
		return t.Format("01-02 15:04:05")
	}
	return t.Format("15:04:05")
}

// took formats a duration: to the second, or to tenths if it is short.
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
