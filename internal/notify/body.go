package notify

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"text/template"
	"time"

	"github.com/recast-sh/recast/cluster"
)

// render makes the request body.
func (h *webhook) render(n cluster.Notice) ([]byte, error) {
	if h.body == nil {
		return toJSON(n)
	}
	var b bytes.Buffer
	if err := h.body.Execute(&b, n); err != nil {
		return nil, fmt.Errorf("its template: %w", err)
	}
	return b.Bytes(), nil
}

func toJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}

func parse(text string) (*template.Template, error) {
	return template.New("template").Option("missingkey=error").Funcs(template.FuncMap{
		"json": func(v any) (string, error) { b, err := toJSON(v); return string(b), err },
		"join": func(list []string, separator string) string { return strings.Join(list, separator) },
	}).Parse(text)
}

// CheckTemplate says what is wrong with a template. It executes it with sample notices.
func CheckTemplate(text string) error {
	t, err := parse(text)
	if err != nil {
		return fmt.Errorf("not a valid template: %w", err)
	}
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	none := cluster.Fates{Done: []string{}, Failed: []string{}, Left: []string{}}
	for _, n := range []cluster.Notice{
		{Event: cluster.NoticeStart, Command: "roll", Cluster: "c", Run: "r", Nodes: none, Hints: []string{}, Started: begun},
		{
			Event: cluster.NoticeFailure, Command: "roll", Cluster: "c", Run: "r", Outcome: "failed", Error: `it is "broken"`, Hints: []string{"mend it"},
			Nodes: cluster.Fates{Done: []string{"a"}, Failed: []string{"b"}, Left: []string{"c"}}, Started: begun, Ended: begun.Add(time.Hour),
		},
	} {
		var b bytes.Buffer
		if err := t.Execute(&b, n); err != nil {
			return fmt.Errorf("not a valid template: %w", err)
		}
	}
	return nil
}
