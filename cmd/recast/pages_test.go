package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/expression"
	"github.com/recast-sh/recast/internal/notify"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/schematics"
	"go.yaml.in/yaml/v4"
)

// page is a Markdown file of this repository with its blocks of code.
type page struct {
	name   string // from the top of the repository
	text   string
	blocks []block
}

// block is one block of code of a page. What it is, is the word behind its fence:
//
//	sh                 typed in a lab, by TestPages
//	sh no-run          needs what no lab has; its commands of recast must exist
//	text               right behind an sh block: what that prints
//	yaml               of recast.yaml
//	yaml schematic     a file of the Image Factory
//	yaml talos         someone else's, and so are kubernetes and hcl
type block struct {
	info       string
	line       int // of its first line of code
	text       string
	start, end int // of its code in the page
	output     bool
}

var fence = regexp.MustCompile("(?m)^( *)```(.*)\n")

// parsePage splits a page into blocks.
func parsePage(name, text string) page {
	p := page{name: name, text: text}
	last := 0 // where the last block of shell ended, fence included
	for at := 0; ; {
		open := fence.FindStringSubmatchIndex(text[at:])
		if open == nil {
			return p
		}
		indent, info := text[at+open[2]:at+open[3]], text[at+open[4]:at+open[5]]
		b := block{info: info, start: at + open[1]}
		end := strings.Index(text[b.start:], indent+"```")
		if end < 0 {
			return p
		}
		b.end = b.start + end
		b.line = 1 + strings.Count(text[:b.start], "\n")
		b.text = strings.ReplaceAll("\n"+text[b.start:b.end], "\n"+indent, "\n")[1:]
		b.output = info == "text" && last > 0 && strings.TrimSpace(text[last:at+open[0]]) == ""
		at = b.end + len(indent) + len("```\n")
		last = 0
		if info == "sh" {
			last = at
		}
		p.blocks = append(p.blocks, b)
		if at >= len(text) {
			return p
		}
	}
}

// readPages reads every Markdown file of the documentation, except generated ones.
func readPages(t *testing.T) []page {
	t.Helper()
	const top = "../.."
	names := []string{"README.md", "CONTRIBUTING.md"}
	for _, dir := range []string{"docs", "examples", "testdata"} {
		must.Do(t, fs.WalkDir(os.DirFS(top), dir, func(name string, e fs.DirEntry, err error) error {
			if err == nil && path.Ext(name) == ".md" && path.Dir(name) != "docs/reference" {
				names = append(names, name)
			}
			return err
		}))
	}
	var pages []page
	for _, name := range names {
		text := must.Get(os.ReadFile(filepath.Join(top, name)))(t)
		pages = append(pages, parsePage(name, string(text)))
	}
	return pages
}

// guides says whether the commands of a page are run in a lab: notes and decision
// records also show parts of commands.
func (p page) guides() bool {
	for _, dir := range []string{"docs/notes", "docs/adr", "docs/runbooks", "examples"} {
		if strings.HasPrefix(p.name, dir+"/") {
			return false
		}
	}
	return p.name != "CONTRIBUTING.md" && p.name != "docs/performance.md"
}

// shell returns the commands of a page, whether they run in a lab or not.
func (p page) shell() []block {
	return slices.DeleteFunc(slices.Clone(p.blocks), func(b block) bool {
		return b.info != "sh" && b.info != "sh no-run"
	})
}

func TestParsePage(t *testing.T) {
	t.Parallel()
	p := parsePage("p.md", "A\n\n```sh\nrecast plan\n```\n\n```text\nsays\n```\n\n1. B\n\n   ```yaml\n   a:\n     b\n   ```\n\n```text\nelse\n```\n```\nopen\n")
	type short struct {
		info, text string
		line       int
		output     bool
	}
	var got []short
	for _, b := range p.blocks {
		got = append(got, short{b.info, b.text, b.line, b.output})
	}
	want := []short{{"sh", "recast plan\n", 4, false}, {"text", "says\n", 8, true}, {"yaml", "a:\n  b\n", 14, false}, {"text", "else\n", 19, false}}
	if !slices.Equal(got, want) {
		t.Errorf("blocks %+v, want %+v", got, want)
	}
}

// TestPagesNameRealCommands checks that every recast command in the documentation is
// valid, in blocks and in sentences.
func TestPagesNameRealCommands(t *testing.T) {
	t.Parallel()
	for _, p := range readPages(t) {
		for _, b := range p.shell() {
			for _, args := range recastLines([]string{quoted.ReplaceAllString(b.text, "QUOTED")}) {
				if err := understood(args); err != nil && !strings.HasSuffix(err.Error(), "help requested") {
					t.Errorf("%s:%d: recast %s: %v", p.name, b.line, strings.Join(args, " "), err)
				}
			}
		}
		for _, m := range inlineCommand.FindAllStringSubmatch(prose(p), -1) {
			if err := commandKnown(strings.Fields(m[1])); err != nil {
				t.Errorf("%s: %s: %v", p.name, m[0], err)
			}
		}
	}
}

var (
	inlineCommand = regexp.MustCompile("`recast ([a-z][^`]*)`")
	quoted        = regexp.MustCompile(`'[^']*'|"[^"]*"`)
)

// commandKnown is understood for a command that may lack arguments, as in a sentence.
func commandKnown(args []string) error {
	root := newRootCmd(&streams{})
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...)
	c, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if err := c.ParseFlags(rest); err != nil && !lacking(err) {
		return err
	}
	return nil
}

// lacking says whether a command line is only incomplete: it asks for help, or its last
// flag has no argument.
func lacking(err error) bool {
	return strings.HasSuffix(err.Error(), "help requested") || strings.HasPrefix(err.Error(), "flag needs an argument")
}

// prose returns a page without its blocks.
func prose(p page) string {
	var b strings.Builder
	at := 0
	for _, c := range p.blocks {
		b.WriteString(p.text[at:c.start])
		at = c.end
	}
	return b.String() + p.text[at:]
}

// TestPagesShell lets the shell parse every block without running it.
func TestPagesShell(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for _, p := range readPages(t) {
		if !p.guides() {
			continue
		}
		for i, b := range p.shell() {
			fmt.Fprintf(&all, "block%d() { # %s:%d\n%s\n}\n", i, p.name, b.line, b.text)
		}
	}
	c := exec.CommandContext(t.Context(), "bash", "-n")
	c.Stdin = strings.NewReader(all.String())
	if said, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, said)
	}
}

// TestPagesShowValidFiles merges each fragment of recast.yaml into examples/recast.yaml,
// and loads the result.
func TestPagesShowValidFiles(t *testing.T) {
	t.Parallel()
	example := must.Get(os.ReadFile("../../examples/recast.yaml"))(t)
	for _, p := range readPages(t) {
		if !p.guides() {
			continue
		}
		for _, b := range p.blocks {
			if err := validBlock(b, example); err != nil {
				t.Errorf("%s:%d: %v", p.name, b.line, err)
			}
		}
	}
}

func validBlock(b block, example []byte) error {
	switch b.info {
	case "yaml":
		file, err := laidOver(example, b.text)
		if err != nil {
			return err
		}
		_, err = config.Parse("recast.yaml", file, config.Options{Dir: "examples", Expr: expression.Check, Template: notify.CheckTemplate})
		return err
	case "yaml schematic":
		_, err := schematics.Parse("schematic.yaml", []byte(b.text))
		return err
	case "sh", "sh no-run", "text", "yaml talos", "yaml kubernetes", "hcl":
		return nil
	}
	return fmt.Errorf("nobody checks a block of %q", b.info)
}

// laidOver returns the example with the keys of a fragment; a fragment with a version is
// a whole file.
func laidOver(example []byte, fragment string) ([]byte, error) {
	var over map[string]any
	if err := yaml.Unmarshal([]byte(fragment), &over); err != nil {
		return nil, err
	}
	if _, whole := over["version"]; whole {
		return []byte(fragment), nil
	}
	var under map[string]any
	if err := yaml.Unmarshal(example, &under); err != nil {
		return nil, err
	}
	layOver(under, over)
	return yaml.Marshal(under)
}

func layOver(under, over map[string]any) {
	for k, v := range over {
		below, both := under[k].(map[string]any)
		above, sections := v.(map[string]any)
		if both && sections {
			layOver(below, above)
			continue
		}
		under[k] = v
	}
}

func TestValidBlock(t *testing.T) {
	t.Parallel()
	example := must.Get(os.ReadFile("../../examples/recast.yaml"))(t)
	for name, c := range map[string]struct {
		b    block
		want string
	}{
		"a fragment":        {block{info: "yaml", text: "roll: {canary: false}"}, ""},
		"an unknown key":    {block{info: "yaml", text: "roll: {canaries: 2}"}, "canaries"},
		"a bad expression":  {block{info: "yaml", text: "roll: {gates: [{apiVersion: v1, kind: Node, expr: 'status.'}]}"}, "expr"},
		"a broken file":     {block{info: "yaml", text: "version: 1"}, "required"},
		"a schematic":       {block{info: "yaml schematic", text: "customization: {extraKernelArgs: [quiet]}"}, ""},
		"no schematic":      {block{info: "yaml schematic", text: "customisation: {}"}, "customisation"},
		"of another kind":   {block{info: "yaml kubernetes", text: "kind: X"}, ""},
		"nobody's business": {block{info: "bash", text: "true"}, "nobody checks"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := validBlock(c.b, example)
			if got := fmt.Sprint(err); (err == nil) != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// TestPagesLinks checks every link of the documentation that stays in the repository.
func TestPagesLinks(t *testing.T) {
	t.Parallel()
	pages := readPages(t)
	anchors := map[string][]string{}
	for _, p := range pages {
		anchors[p.name] = pageHeadings(p)
	}
	for _, p := range pages {
		for _, target := range pageLinks(p) {
			file, anchor, _ := strings.Cut(target, "#")
			name := p.name
			if file != "" {
				name = path.Join(path.Dir(p.name), file)
			}
			if _, err := os.Stat(filepath.Join("../..", name)); err != nil {
				t.Errorf("%s: there is no %s", p.name, target)
			}
			if list, ours := anchors[name]; ours && anchor != "" && !slices.Contains(list, anchor) {
				t.Errorf("%s: %s has no heading %q; it has %s", p.name, name, anchor, strings.Join(list, ", "))
			}
		}
	}
	index := slices.IndexFunc(pages, func(p page) bool { return p.name == "docs/README.md" })
	if index < 0 {
		t.Fatal("there is no docs/README.md")
	}
	listed := pageLinks(pages[index])
	for _, p := range pages {
		name, below := strings.CutPrefix(p.name, "docs/")
		if below && name != "README.md" && !strings.HasPrefix(name, "runbooks/") && !slices.Contains(listed, name) {
			t.Errorf("docs/README.md does not list %s", name)
		}
	}
}

var (
	pageLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	pageHeading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	inlineCode  = regexp.MustCompile("`[^`\n]*`")
)

// pageLinks returns the links of a page to files of this repository.
func pageLinks(p page) []string {
	var all []string
	for _, m := range pageLink.FindAllStringSubmatch(inlineCode.ReplaceAllString(prose(p), ""), -1) {
		if !strings.Contains(m[1], "://") {
			all = append(all, m[1])
		}
	}
	return all
}

// pageHeadings returns a page's headings, as GitHub names them in links.
func pageHeadings(p page) []string {
	var all []string
	for _, m := range pageHeading.FindAllStringSubmatch(prose(p), -1) {
		name := regexp.MustCompile(`[^\pL\pN _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, strings.ReplaceAll(name, " ", "-"))
	}
	return all
}
