package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// elided, on its own line, stands for any number of lines of a transcript.
const elided = "…"

// passing lists what differs between runs of the same commands, and its replacement when
// two transcripts are compared. The page keeps the values of one run.
var passing = []struct {
	what *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`\b\d{8}-\d{4,6}(-[0-9a-f]{4,})?(-[0-9a-f]{4,})?\b`), "RUN"},
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z?)?`), "TIME"},
	{regexp.MustCompile(`\b([0-9A-F]{2}:){31}[0-9A-F]{2}\b`), "FINGERPRINT"},
	{regexp.MustCompile(`\b127\.\d+\.\d+\.(\d+)\b`), "127.0.0.$1"},
	{regexp.MustCompile(`\b127\.0\.0\.1:\d+`), "127.0.0.1:PORT"},
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "UUID"},
	{regexp.MustCompile(`\b[0-9a-f]{8,}\b`), "ID"},
	{regexp.MustCompile(`\b(\d+h)?(\d+m)?\d+(\.\d+)?(ms|µs|s|m|h)\b`), "TIME"},
	{regexp.MustCompile(`\babout \d+ (s|min|h)\b`), "about TIME"},
	{regexp.MustCompile(`(?m)(✓ .*?)[ \t]+TIME$`), "$1"}, // steps of less than a second show none
	{regexp.MustCompile(`\b\d+(\.\d+)?( ?[KMG]i?B| bytes)?(/s)? of \d+(\.\d+)? ?[KMG]i?B`), "SIZE"},
	{regexp.MustCompile(`\b\d+(\.\d+)? ?([KMG]i?B|bytes)\b`), "SIZE"},
	{regexp.MustCompile(`[ \t]+`), " "},
}

// storyLine matches a progress line of a run.
var storyLine = regexp.MustCompile(`^ *[0-9hms.]+s  .*?([▸✓✗·]) (.*)$`)

// progressText returns a progress line without its variable parts. Which lines appear
// depends on timing, so a page shows only some of them; what a step waits for varies
// completely, so those lines are "".
func progressText(line string) (what string, story bool) {
	m := storyLine.FindStringSubmatch(line)
	switch {
	case m == nil:
		return "", false
	case m[1] == "·":
		return "", true
	case m[1] == "✗":
		return "✗ " + constant(m[2]), true
	}
	return strings.TrimSuffix(constant(m[2]), " (TIME)"), true
}

// constant returns a text without its variable parts.
func constant(text string) string {
	for _, p := range passing {
		text = p.what.ReplaceAllString(text, p.as)
	}
	return text
}

// constantLines returns the lines of a transcript without their variable parts: those of
// the answer in order, and the progress lines.
func constantLines(text string) (answer []string, story map[string]bool) {
	story = map[string]bool{}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		what, of := progressText(line)
		if !of {
			answer = append(answer, constant(line))
		} else if what != "" {
			story[what] = true
		}
	}
	for len(answer) > 0 && answer[len(answer)-1] == "" {
		answer = answer[:len(answer)-1]
	}
	return answer, story
}

// excerpt shortens a transcript for a page that has shown an earlier one: it keeps the
// progress lines that the page showed, and all of them if it showed and omitted none.
func excerpt(earlier, printed string) string {
	answer, story := constantLines(earlier)
	some := len(story) > 0 || slices.Contains(answer, elided)
	var b strings.Builder
	for line := range strings.Lines(strings.TrimRight(printed, "\n") + "\n") {
		what, of := progressText(strings.TrimRight(line, " \n"))
		if of && (what == "" || some && !story[what]) {
			continue
		}
		b.WriteString(line)
	}
	return b.String()
}

// showsStill says whether a page's transcript still matches the output.
func showsStill(page, printed string) bool {
	got, happened := constantLines(printed)
	want, story := constantLines(page)
	for what := range story {
		if !happened[what] {
			return false
		}
	}
	parts := [][]string{nil}
	for _, line := range want {
		if strings.TrimSpace(line) == elided {
			parts = append(parts, nil)
			continue
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], line)
	}
	first, last := parts[0], parts[len(parts)-1]
	if len(parts) == 1 {
		return slices.Equal(first, got)
	}
	if len(got) < len(first)+len(last) || !slices.Equal(first, got[:len(first)]) || !slices.Equal(last, got[len(got)-len(last):]) {
		return false
	}
	rest := got[len(first) : len(got)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		at := indexLines(rest, part)
		if at < 0 {
			return false
		}
		rest = rest[at+len(part):]
	}
	return true
}

func indexLines(lines, part []string) int {
	for i := range len(lines) - len(part) + 1 {
		if slices.Equal(lines[i:i+len(part)], part) {
			return i
		}
	}
	return -1
}

func TestShows(t *testing.T) {
	t.Parallel()
	const printed = "run 20261121-0421-3f2a: done after 16m0s\n   3s  wk1  · waits\n   4s  wk1    ▸ drain wk1\n  12s  wk1    ✓ drain wk1 (8s)\n  wk1 is at 127.5.6.31, build abcdef012345\nend\n"
	for name, c := range map[string]struct {
		page string
		want bool
	}{
		"what was printed":  {printed, true},
		"at another time":   {"run 20270101-0000-ffff: done after 1m2s\n 1m12s  wk1  ✓ drain wk1 (18s)\n wk1 is at 127.9.9.31, build 0123456789ab\nend\n", true},
		"another node":      {strings.ReplaceAll(printed, "wk1", "wk2"), false},
		"a line is missing": {strings.ReplaceAll(printed, "end\n", ""), false},
		"elided":            {"run 20261121-0421-3f2a: done after 16m0s\n…\nend\n", true},
		"elided twice":      {"…\n  wk1 is at 127.5.6.31, build abcdef012345\n…\nend\n", true},
		"another story":     {"  12s  wk2  ✓ drain wk2 (8s)\n…\n", false},
		"a failure":         {"  12s  wk1  ✗ drain wk1 (8s)\n…\n", false},
		"elided at the end": {"run 20261121-0421-3f2a: done after 16m0s\n…\n", true},
		"another end":       {"…\nthe end\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := showsStill(c.page, printed); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

func TestExcerpt(t *testing.T) {
	t.Parallel()
	const printed = "starting\n   1s  wk1  ▸ drain wk1\n   1s  wk1  · evicting\n   3s  wk1  ▸ stop wk1\n   9s  wk1  ✓ stop wk1 (6s)\nrun: done after 9s\n\n"
	for name, c := range map[string]struct{ earlier, want string }{
		"a new page":     {"\n", "starting\n   1s  wk1  ▸ drain wk1\n   3s  wk1  ▸ stop wk1\n   9s  wk1  ✓ stop wk1 (6s)\nrun: done after 9s\n"},
		"an elided page": {"…\nrun: done after 9s\n", "starting\nrun: done after 9s\n"},
		"a chosen page":  {"  12s  wk1    ▸ drain wk1\nrun: failed\n", "starting\n   1s  wk1  ▸ drain wk1\nrun: done after 9s\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := excerpt(c.earlier, printed)
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if !showsStill(got, printed) {
				t.Error("it does not show what was printed")
			}
		})
	}
}
