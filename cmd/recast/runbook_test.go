package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/docs/runbooks"
	"github.com/recast-sh/recast/internal/fault"
)

// Every error of a command says what is safe, what to run next, and which page explains
// it; that page exists.
func TestEveryCodeHasItsPage(t *testing.T) {
	t.Parallel()
	plan, _, err := newRootCmd(&streams{}).Find([]string{"plan"})
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range fault.AllCodes() {
		var out bytes.Buffer
		(&streams{err: &console{Writer: &out}}).exit(plan, code.Of(errors.New("what")))
		for _, line := range []string{"error: ", "safe: ", "hint: ", "runbook: recast runbook "} {
			if !strings.Contains(out.String(), line) {
				t.Errorf("%s: nothing after %q in %q", code, line, out.String())
			}
		}
		page, found := runbooks.Page(string(code))
		if !found {
			t.Errorf("docs/runbooks/%s.md: there is none", code)
			continue
		}
		if !strings.HasPrefix(page, "# "+string(code)+": ") || runbooks.Title(string(code)) == "" {
			t.Errorf("docs/runbooks/%s.md: its heading is not %q and a title", code, code)
		}
		for _, section := range []string{"## You see", "## What it means", "## What is safe", "## Look", "## Do"} {
			if !strings.Contains(page, "\n"+section+"\n") {
				t.Errorf("docs/runbooks/%s.md: no section %q", code, section)
			}
		}
	}
}

func TestEveryPageIsListed(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../docs/runbooks/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var have []fault.Code
	for _, file := range files {
		if code := strings.TrimSuffix(filepath.Base(file), ".md"); code != "README" {
			have = append(have, fault.Code(code))
			if row := "| [" + code + "](" + code + ".md) | " + runbooks.Title(code) + " |"; !strings.Contains(string(readme), row) {
				t.Errorf("docs/runbooks/README.md lacks the row\n%s", row)
			}
		}
	}
	if diff := cmp.Diff(fault.AllCodes(), have); diff != "" {
		t.Errorf("pages (-codes +pages):\n%s", diff)
	}
}

// pagesOf calls do with each page, by its file.
func pagesOf(t *testing.T, do func(file, text string)) {
	t.Helper()
	for _, code := range fault.AllCodes() {
		text, _ := runbooks.Page(string(code))
		do("docs/runbooks/"+string(code)+".md", text)
	}
}

var spans = regexp.MustCompile("`(recast [^`]+)`")

func TestRunbooksNameRealCommands(t *testing.T) {
	t.Parallel()
	pagesOf(t, func(file, text string) {
		var lines []string
		for _, m := range spans.FindAllStringSubmatch(text, -1) {
			lines = append(lines, m[1])
		}
		for _, block := range strings.Split(text, "```sh\n")[1:] {
			block, _, _ = strings.Cut(block, "```")
			for line := range strings.Lines(block) {
				if strings.HasPrefix(line, "recast ") {
					lines = append(lines, line)
				}
			}
		}
		for _, line := range lines {
			if err := parses(line); err != nil {
				t.Errorf("%s: %s: %v", file, strings.TrimSpace(line), err)
			}
		}
	})
	if parses("recast roll --only") == nil || parses("recast rol") == nil || parses("recast remove a b") == nil {
		t.Error("an invalid command line is accepted")
	}
}

// parses returns recast's error for a line of a shell, up to where another command
// follows.
func parses(line string) error {
	if i := strings.IndexAny(line, "|>;&"); i >= 0 {
		line = line[:i]
	}
	root := newRootCmd(&streams{in: strings.NewReader(""), out: io.Discard, err: &console{Writer: io.Discard}})
	c, rest, err := root.Find(strings.Fields(line)[1:])
	if err != nil {
		return err
	}
	c.InitDefaultHelpFlag()
	if err := c.ParseFlags(rest); err != nil {
		return err
	}
	if len(rest) == 0 {
		return nil // a page speaks of the command
	}
	return c.ValidateArgs(c.Flags().Args())
}

// Messages that a page quotes exist in the sources, except for their variable parts.
func TestRunbooksQuoteTheSources(t *testing.T) {
	t.Parallel()
	sources := allSources(t)
	pagesOf(t, func(file, text string) {
		_, seen, _ := strings.Cut(text, "## You see\n")
		seen, _, _ = strings.Cut(seen, "\n## ")
		_, block, found := strings.Cut(seen, "```\n")
		if !found {
			return
		}
		block, _, _ = strings.Cut(block, "```")
		for line := range strings.Lines(block) {
			for part := range strings.SplitSeq(strings.TrimSpace(line), "…") {
				part = strings.Trim(part, " :(),")
				if len(part) > 9 && !strings.Contains(sources, part) && !strings.HasPrefix(part, "recast.yaml:") {
					t.Errorf("%s: no source says %q", file, part)
				}
			}
		}
	})
}

// allSources is the text of every Go file except tests, including those of the lab: they
// contain Proxmox's own messages.
func allSources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		all.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(all.String(), `\"`, `"`)
}

func TestRunbooksLinkToExistingFiles(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#]+)(?:#([^)]+))?\)`)
	pagesOf(t, func(file, text string) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			b, err := os.ReadFile(filepath.Join("../../docs/runbooks", m[1]))
			if err != nil {
				t.Errorf("%s: %v", file, err)
			} else if m[2] != "" && !slices.Contains(anchors(string(b)), m[2]) {
				t.Errorf("%s: %s has no heading #%s", file, m[1], m[2])
			}
		}
	})
}

// anchors returns the headings of a page as links name them.
func anchors(page string) []string {
	var out []string
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "#") {
			heading := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
			out = append(out, regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ReplaceAll(heading, " ", "-"), ""))
		}
	}
	return out
}

// The default hints, for errors without their own, name commands that exist.
func TestNextStepsNameRealCommands(t *testing.T) {
	t.Parallel()
	command := regexp.MustCompile(`recast ([a-z0-9-]+)`)
	root := newRootCmd(&streams{})
	for _, code := range fault.AllCodes() {
		if code.Next() == "" {
			t.Errorf("%s: no next step", code)
		}
		for _, m := range command.FindAllStringSubmatch(code.Next(), -1) {
			if c, _, err := root.Find(m[1:]); err != nil || c == root {
				t.Errorf("%s: there is no %q", code, m[0])
			}
		}
	}
}

// A configuration error in the middle of a run only claims what is true at that time.
func TestConfigErrorDuringARun(t *testing.T) {
	t.Parallel()
	roll, _, err := newRootCmd(&streams{}).Find([]string{"roll"})
	if err != nil {
		t.Fatal(err)
	}
	expired := fault.Credentials.Configf("its certificate expired")
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"usage":                  {fault.WithHint(errUsage{errors.New("no such flag")}, "h"), "nothing was changed"},
		"no recast.yaml":         {errOpening{fault.Configf("no such file")}, "nothing was changed"},
		"an expired certificate": {fmt.Errorf("roll/workers/wk1: %w", expired), untouched["recast roll"]},
		"no docker":              {fault.BuildFailed.Configf("neither docker nor podman"), untouched["recast roll"]},
	} {
		if got := safeAfter(roll, c.err); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	var out bytes.Buffer
	(&streams{err: &console{Writer: &out}}).exit(roll, fault.WithSafe(expired, "scsi1 is parked"))
	if !strings.Contains(out.String(), "\nsafe: scsi1 is parked\n") || strings.Contains(out.String(), "nothing was changed") {
		t.Error(out.String())
	}
}

func TestEveryCommandSaysWhatIsSafe(t *testing.T) {
	t.Parallel()
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if safeAfter(c, errUnread) == untouched["recast"] && c.HasParent() {
			t.Errorf("%s: what is safe when it has failed is not in the list", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRootCmd(&streams{}))
}
