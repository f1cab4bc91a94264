package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/docs/runbooks"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/spf13/cobra"
)

// Every error of a command says what is safe, what to run next, and which page explains
// it; that page exists.
func TestEveryCodeHasItsPage(t *testing.T) {
	t.Parallel()
	plan, _, err := newRootCmd(&streams{}).Find([]string{"plan"})
	must.Do(t, err)
	for _, code := range fault.AllCodes() {
		var out bytes.Buffer
		(&streams{err: &console{Writer: &out}}).exit(plan, code.Of(errors.New("what")))
		must.Contain(t, string(code), out.String(), "error: ", "safe: ", "hint: ", "runbook: recast runbook ")
		page, found := runbooks.Page(string(code))
		if !found {
			t.Errorf("docs/runbooks/%s.md: there is none", code)
			continue
		}
		if !strings.HasPrefix(page, "# "+string(code)+": ") || runbooks.Title(string(code)) == "" {
			t.Errorf("docs/runbooks/%s.md: its heading is not %q and a title", code, code)
		}
		for _, section := range []string{"## You see", "## What it means", "## What is safe", "## Look", "## Do"} {
			must.Contain(t, "docs/runbooks/"+string(code)+".md", page, "\n"+section+"\n")
		}
	}
}

func TestEveryPageIsListed(t *testing.T) {
	t.Parallel()
	files := must.Get(filepath.Glob("../../docs/runbooks/*.md"))(t)
	readme := must.Get(os.ReadFile("../../docs/runbooks/README.md"))(t)
	var have []fault.Code
	for _, file := range files {
		if code := strings.TrimSuffix(filepath.Base(file), ".md"); code != "README" {
			have = append(have, fault.Code(code))
			if row := "| [" + code + "](" + code + ".md) | " + runbooks.Title(code) + " |"; !strings.Contains(string(readme), row) {
				t.Errorf("docs/runbooks/README.md lacks the row\n%s", row)
			}
		}
	}
	must.Equal(t, "pages", fault.AllCodes(), have)
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
	must.Do(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		all.Write(b)
		return err
	}))
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
	must.Do(t, err)
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
		must.Equal(t, name, c.want, safeAfter(roll, c.err))
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

// Wiping a machine without labels loses its configuration with the system disk, or keeps
// etcd's data, and then its member never joins again.
func TestEveryResetNamesItsLabels(t *testing.T) {
	t.Parallel()
	bare := regexp.MustCompile(`(?i)talosctl [^\n]*\breset\b|\breset (?:its|that|the|this) (?:machine|node)`)
	for _, p := range readPages(t) {
		if strings.HasPrefix(p.name, "docs/adr/") {
			continue
		}
		for line := range strings.Lines(p.text) {
			if bare.MatchString(line) && !strings.Contains(line, "--system-labels-to-wipe") {
				t.Errorf("%s: %s", p.name, strings.TrimSpace(line))
			}
		}
	}
	for _, line := range []string{"`talosctl reset` of it", "talosctl -n CP1 reset --reboot", "remove it, reset its machine"} {
		if !bare.MatchString(line) {
			t.Errorf("%q passes", line)
		}
	}
}

// A member of etcd must never come back with old data.
func TestNoPageBringsOldEtcdBack(t *testing.T) {
	t.Parallel()
	for _, p := range readPages(t) {
		before, after, restores := strings.Cut(p.text, "qmrestore")
		if restores && (!strings.Contains(after, "remove-member") || strings.Contains(before, "remove-member")) {
			t.Errorf("%s restores a VM and does not say what to do about its etcd member", p.name)
		}
	}
}

// VMID is a node's VM on all pages.
func TestNoPageDestroysANodesVM(t *testing.T) {
	t.Parallel()
	for _, p := range readPages(t) {
		if strings.Contains(p.text, "qm destroy VMID") && p.name != "docs/notes/proxmox.md" {
			t.Errorf("%s has qm destroy VMID", p.name)
		}
	}
}

// No page advises a command that frees volumes of a node for good.
func TestNoPageFreesAnUnusedDisk(t *testing.T) {
	t.Parallel()
	frees := regexp.MustCompile(`(?m)^\s*qm set .*--delete unused`)
	for _, p := range readPages(t) {
		if frees.MatchString(p.text) && p.name != "docs/notes/proxmox.md" {
			t.Errorf("%s: %s", p.name, frees.FindString(p.text))
		}
	}
}

// A page can't know how far a run got: if its code can occur while a node is down, the
// safe: line of that run takes precedence.
func TestPagesPromiseNoMoreThanTheRun(t *testing.T) {
	t.Parallel()
	const counts = "The `safe:` line of your run takes precedence over this page."
	promise := regexp.MustCompile(`(?i)not touched|nothing was (?:done|touched)|(?:was|were) (?:never |not )?(?:touched|changed)|every disk is|all persistent disks`)
	risky := riskyCodes(t)
	// These occur inside the steps of others, or have no risk of their own.
	for _, code := range []fault.Code{fault.NoJoin, fault.VMLocked, fault.UUIDMismatch, fault.RolledBackByItself} {
		risky[code] = true
	}
	for code := range risky {
		_, safe, _ := strings.Cut(pageText(t, code), "\n## What is safe\n\n")
		safe, _, _ = strings.Cut(safe, "\n## ")
		if promise.MatchString(safe) && !strings.HasPrefix(safe, counts) {
			t.Errorf("docs/runbooks/%s.md promises too much: %s", code, safe)
		}
	}
	if len(risky) < 9 || !risky[fault.EtcdUnhealthy] || !risky[fault.UpgradeStuck] {
		t.Errorf("only %v are codes of steps with a risk", risky)
	}
}

func pageText(t *testing.T, code fault.Code) string {
	t.Helper()
	return repositoryFile(t, "docs/runbooks/"+string(code)+".md")
}

// riskyCodes are the codes of steps that may interrupt a node, or remove something of it.
func riskyCodes(t *testing.T) map[fault.Code]bool {
	t.Helper()
	files := must.Get(filepath.Glob("../../cluster/*/*.go"))(t)
	byName := codesByName(t)
	found := map[fault.Code]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree := must.Get(parser.ParseFile(token.NewFileSet(), file, nil, 0))(t)
		ast.Inspect(tree, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			names := map[string]string{}
			for _, e := range lit.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok {
					if s, ok := kv.Value.(*ast.SelectorExpr); ok {
						if key, ok := kv.Key.(*ast.Ident); ok {
							names[key.Name] = s.Sel.Name
						}
					}
				}
			}
			if code := byName[names["Code"]]; code != "" && (names["Risk"] == "Disruptive" || names["Risk"] == "Destructive") {
				found[code] = true
			}
			return true
		})
	}
	return found
}

// codesByName maps the names of the constants to their codes.
func codesByName(t *testing.T) map[string]fault.Code {
	t.Helper()
	found := map[string]fault.Code{}
	for _, m := range regexp.MustCompile(`(?m)^\t(\w+)\s+Code = "([a-z0-9-]+)"`).FindAllStringSubmatch(repositoryFile(t, "internal/fault/fault.go"), -1) {
		found[m[1]] = fault.Code(m[2])
	}
	return found
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for want, err := range map[int]error{
		exitDone: nil, exitFailed: fault.WithHint(errUnread, "h"), exitDiffers: errDiffers, exitConfig: fault.Configf("x"),
		exitRefused: fault.Refusedf("x"), exitClaimed: fault.As(fault.Claimed, errUnread), exitInterrupted: fault.As(fault.Interrupted, errUnread),
	} {
		var out bytes.Buffer
		s := &streams{err: &console{Writer: &out}}
		must.Equal(t, fmt.Sprint(err), want, s.exit(nil, err))
		if quiet := err == nil || err == errDiffers; quiet != (out.Len() == 0) {
			t.Errorf("%v printed %q", err, out.String())
		}
	}
	var out bytes.Buffer
	(&streams{err: &console{Writer: &out}}).exit(nil, fault.WithHint(errUsage{errors.New("what")}, "do that"))
	if want := "error: what\nsafe: nothing was changed\nhint: do that\nrunbook: recast runbook config-invalid ("; !strings.HasPrefix(out.String(), want) {
		t.Errorf("printed %q, want %q…", out.String(), want)
	}
}
