package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/expression"
	"github.com/recast-sh/recast/internal/live/emulator"
	"github.com/recast-sh/recast/internal/notify"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/schematics"
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

// guides says whether the commands of a page are run in a lab: notes and decision records also show parts of commands.
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
	got := cluster.Each(p.blocks, func(b block) short { return short{b.info, b.text, b.line, b.output} })
	want := []short{{"sh", "recast plan\n", 4, false}, {"text", "says\n", 8, true}, {"yaml", "a:\n  b\n", 14, false}, {"text", "else\n", 19, false}}
	must.Hold(t, slices.Equal(got, want), "blocks %+v, want %+v", got, want)
}

// TestPagesNameRealCommands checks that every recast command in the documentation is valid, in blocks and in sentences.
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

// lacking says whether a command line is only incomplete: it asks for help, or its last flag has no argument.
func lacking(err error) bool {
	return strings.HasSuffix(err.Error(), "help requested") || strings.HasPrefix(err.Error(), "flag needs an argument")
}

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

// TestPagesShowValidFiles merges each fragment of recast.yaml into examples/recast.yaml, and loads the result.
func TestPagesShowValidFiles(t *testing.T) {
	t.Parallel()
	example := must.Get(os.ReadFile("../../examples/recast.yaml"))(t)
	for _, p := range readPages(t) {
		if !p.guides() {
			continue
		}
		for _, b := range p.blocks {
			err := validBlock(b, example)
			must.Hold(t, err == nil, "%s:%d: %v", p.name, b.line, err)
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

// laidOver returns the example with the keys of a fragment; a fragment with a version is a whole file.
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
			got := fmt.Sprint(err)
			must.Hold(t, (err == nil) == (c.want == "") && strings.Contains(got, c.want), "%v, want %q", err, c.want)
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
	must.Be(t, index >= 0, "there is no docs/README.md")
	listed := pageLinks(pages[index])
	for _, p := range pages {
		name, below := strings.CutPrefix(p.name, "docs/")
		must.Hold(t, !below || name == "README.md" || strings.HasPrefix(name, "runbooks/") || slices.Contains(listed, name),
			"docs/README.md does not list %s", name)
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

var (
	pagesUpdate = flag.Bool("pages.update", false, "write what the commands of the documentation print into its pages, where it has changed")
	pagesSpeed  = flag.String("pages.speed", "40", "how many simulated seconds pass in one in the labs of the documentation")
)

// TestPages runs the commands of every page as they are written. A block that starts with recast lab up has its own
// terminal, in which the lab runs until the next such block; all others run in a second one. A command whose comment
// names an exit code must end with it, every other one with 0.
func TestPages(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories; the story of a roll does the same")
	}
	t.Parallel()
	for _, p := range readPages(t) {
		scenes := p.scenes(t)
		if !p.guides() || len(scenes) == 0 {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			printed := map[int]string{}
			for _, s := range scenes {
				s.play(t, p, printed)
			}
			p.compare(t, printed)
		})
	}
}

type scene struct {
	lab    int // numbers of blocks
	blocks []int
}

func (p page) scenes(t *testing.T) []scene {
	t.Helper()
	var all []scene
	for i, b := range p.blocks {
		switch {
		case b.info != "sh" || !p.guides():
		case strings.HasPrefix(strings.TrimPrefix(b.text, "bin/"), "recast lab up"):
			all = append(all, scene{lab: i})
		case len(all) == 0:
			t.Errorf("%s:%d: this is typed where no lab is up", p.name, b.line)
		default:
			all[len(all)-1].blocks = append(all[len(all)-1].blocks, i)
		}
	}
	return all
}

// pageStage is the directory of a clone after make build: bin/recast in it is this test
// binary. The build itself is left out.
type pageStage struct {
	t    *testing.T
	dir  string
	home string
	path string // PATH
}

func newPageStage(t *testing.T) pageStage {
	t.Helper()
	dir := t.TempDir()
	self := must.Get(os.Executable())(t)
	must.Do(t, os.MkdirAll(filepath.Join(dir, "bin"), 0o700))
	recast := filepath.Join(dir, "bin", "recast")
	if os.Link(self, recast) != nil { // it is on another file system
		b, err := os.ReadFile(self)
		must.Do(t, errors.Join(err, os.WriteFile(recast, b, 0o700)))
	}
	return pageStage{t, dir, dir, os.Getenv("PATH")}
}

// installed is the same with recast in the PATH.
func (s pageStage) installed() pageStage {
	s.path = filepath.Join(s.dir, "bin") + ":" + s.path
	return s
}

func (s pageStage) shell(script string, said *bytes.Buffer) *exec.Cmd {
	c := exec.CommandContext(s.t.Context(), "bash", "-euo", "pipefail", "-c", script)
	c.Dir, c.Stdout, c.Stderr = s.dir, said, said
	c.Env = append(os.Environ(), "RECAST_TEST_MAIN=1", "PATH="+s.path, "HOME="+s.home, "NO_COLOR=1", "GORACE="+noNap)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	return c
}

// lab starts a lab. What it returns ends it, and returns what it has printed.
func (s pageStage) lab(command string) func() string {
	s.t.Helper()
	var said bytes.Buffer
	// Faster than a person would want it; nothing else differs.
	lab := s.shell("exec "+command+" --speed "+*pagesSpeed, &said)
	must.Do(s.t, lab.Start())
	awaitFile(s.t, filepath.Join(s.dir, labDir(command), "lab.json"))
	end := sync.OnceValue(func() string {
		must.Do(s.t, lab.Process.Signal(os.Interrupt))
		if err := lab.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			s.t.Errorf("%s, interrupted: %v\n%s", command, err, &said)
		}
		return said.String()
	})
	s.t.Cleanup(func() { end() })
	return end
}

// play runs a scene and adds the output, by the numbers of blocks.
func (sc scene) play(t *testing.T, p page, printed map[int]string) {
	t.Helper()
	command := strings.TrimSpace(p.blocks[sc.lab].text)
	s := newPageStage(t)
	first := s // the second terminal finds recast by the lab's env alone
	if !strings.HasPrefix(command, "bin/") {
		first = s.installed()
	}
	end := first.lab(command)
	defer func() { printed[sc.lab] = s.anonymous(end()) }()
	var said bytes.Buffer
	err := s.shell(sc.script(p), &said).Run()
	last := sc.lab
	for i, part := range strings.Split(said.String(), marker) {
		if i > 0 {
			last = sc.blocks[i-1]
			printed[last] = s.anonymous(part)
		}
	}
	if err != nil {
		t.Fatalf("%s:%d: %v:\n%s\n%s", p.name, p.blocks[last].line, err, p.blocks[last].text, printed[last])
	}
}

// marker is printed before a block.
const marker = "\x1e\n"

var exitComment = regexp.MustCompile(`(?m)^(recast [^#\n]*?)\s+#.*\bexit code (\d+).*$`)

func (sc scene) script(p page) string {
	var b strings.Builder
	b.WriteString("exits() { local want=$1 got=0; shift; \"$@\" || got=$?; if [ $got != $want ]; then echo \"exit code $got, want $want: $*\"; return 1; fi }\n")
	for _, i := range sc.blocks {
		fmt.Fprintf(&b, "printf %s\n%s\n", strconv.Quote(`\036\n`), exitComment.ReplaceAllString(p.blocks[i].text, "exits $2 $1"))
	}
	return b.String()
}

func labDir(command string) string {
	fields := strings.Fields(command)
	for i, f := range fields[:len(fields)-1] {
		if f == "--dir" {
			return fields[i+1]
		}
	}
	return "lab"
}

// anonymous replaces the temporary directory by another person's home directory.
func (s pageStage) anonymous(text string) string { return strings.ReplaceAll(text, s.home, "~") }

func (p page) compare(t *testing.T, printed map[int]string) {
	t.Helper()
	text, changed := p.text, false
	for i := len(p.blocks) - 1; i > 0; i-- { // from the end, so that places stay
		b := p.blocks[i]
		if !b.output || showsStill(b.text, printed[i-1]) {
			continue
		}
		if !*pagesUpdate {
			t.Errorf("%s:%d: what this prints has changed; go test ./cmd/recast -run TestPages -pages.update writes it afresh. The page:\n%s\nprinted:\n%s",
				p.name, b.line, b.text, printed[i-1])
		}
		text, changed = text[:b.start]+excerpt(b.text, printed[i-1])+text[b.end:], true
	}
	if !changed || !*pagesUpdate {
		return
	}
	must.Do(t, os.WriteFile(filepath.Join("../..", p.name), []byte(text), 0o600))
}

func awaitFile(t testing.TB, path string) {
	t.Helper()
	for range 6000 {
		if _, err := os.Stat(path); err == nil {
			return
		}
		<-time.After(100 * time.Millisecond)
	}
	t.Fatalf("%s was never written", path)
}

func TestScriptOfAPage(t *testing.T) {
	t.Parallel()
	p := parsePage("p.md", "```sh\nrecast lab up --dir x\n```\n```sh\nrecast drift   # exit code 2: stale\nrecast plan    # all of it\n```\n")
	sc := p.scenes(t)
	must.Be(t, len(sc) == 1 && labDir(p.blocks[sc[0].lab].text) == "x", "scenes %v", sc)
	must.Contain(t, "text", sc[0].script(p), "\nexits 2 recast drift\nrecast plan    # all of it\n")
}

var transcriptUpdate = flag.Bool("transcript.update", false, "write docs/reference/transcript.md afresh, where what it shows has changed")

const (
	transcriptPage  = "../../docs/reference/transcript.md"
	transcriptIntro = "# The first hour\n\nEverything that a newcomer sees, from an unknown cluster to a roll and back: on a terminal, and from a script.\n" +
		"`make docs` writes this page, and a test compares it. In its lab time passes 40 times as fast.\n"
)

// typedLine is a command as a newcomer types it.
type typedLine struct {
	text    string
	flags   string   // what a script needs besides
	answers []string // on a terminal: what a question contains, and what is typed then
	code    int
}

var firstHour = []typedLine{
	{
		text: `recast init --extensions "$LAB_EXTENSIONS"`, flags: ` --fingerprint "$LAB_FINGERPRINT" --yes`,
		answers: []string{"Is it the right one?", "yes", "boot ISOs? [", "", "disks)? [", ""},
	},
	{text: "recast doctor"},
	{text: "recast lock --check"},
	{text: "recast lab patch iscsi-tools --dir ."},
	{text: "recast lock --update"},
	{text: "recast drift", code: exitDiffers},
	{text: "recast plan"},
	{text: "recast roll", flags: " --yes", answers: []string{`Only "yes" continues: `, "yes"}},
	{text: "recast drift"},
	{text: "recast status"},
	{text: "recast undo wk1", flags: " --yes", answers: []string{`Only "yes" continues: `, "yes"}},
	{text: "recast history"},
	{text: "recast lab check --dir ."},
}

// TestTranscript types the first hour in two labs, on a terminal and as a script does, and
// compares all that a person sees with the page.
func TestTranscript(t *testing.T) {
	long(t)
	t.Parallel()
	old := must.Get(os.ReadFile(transcriptPage))(t)
	before := parsePage("", string(old)).blocks
	var typed, piped []string
	t.Run("typed", func(t *testing.T) {
		t.Parallel()
		typed = playFirstHour(t, func(s pageStage, line typedLine) string { return s.typed(line) })
	})
	t.Run("piped", func(t *testing.T) {
		t.Parallel()
		piped = playFirstHour(t, func(s pageStage, line typedLine) string { return s.piped(line) })
	})
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		page := transcriptIntro + chapter("On a terminal", typed, nil, before) + chapter("From a script", piped, typed, before)
		if page == string(old) {
			return
		}
		if !*transcriptUpdate {
			t.Errorf("what a newcomer sees has changed: go test ./cmd/recast -run TestTranscript -transcript.update (-page +printed):\n%s", cmp.Diff(string(old), page))
		} else if err := os.WriteFile(transcriptPage, []byte(page), 0o600); err != nil {
			t.Error(err)
		}
	})
}

func playFirstHour(t *testing.T, play func(pageStage, typedLine) string) []string {
	s := newPageStage(t)
	const command = "bin/recast lab up --dir lab --no-config"
	end := s.lab(command)
	s.dir = filepath.Join(s.dir, "lab")
	all := cluster.Each(firstHour, func(line typedLine) string { return s.anonymous(play(s, line)) })
	return append([]string{"$ " + command + "\n" + s.anonymous(end()) + "$ cd lab && . ./env\n"}, all...)
}

func (s pageStage) inLab(command string) *exec.Cmd {
	var unused bytes.Buffer
	return s.shell(". ./env; "+command, &unused)
}

// typed types a command on a terminal, and its answers, and returns what the terminal shows then.
func (s pageStage) typed(line typedLine) string {
	s.t.Helper()
	const columns, rows = 120, 40
	c := s.inLab(line.text)
	c.Env = append(c.Env, "TERM=xterm-256color", "CI=")
	sc := startScreen(s.t, c, columns, rows)
	for question := range slices.Chunk(line.answers, 2) {
		sc.await(question[0])
		sc.typed(question[1] + "\r")
	}
	if code := sc.end(); code != line.code {
		s.t.Fatalf("%s: exit code %d, want %d:\n%s", line.text, code, line.code, sc.seen())
	}
	screen := emulator.New(columns, rows)
	fmt.Fprint(screen, sc.seen())
	if len(screen.Problems) > 0 {
		s.t.Errorf("%s: %q", line.text, screen.Problems)
	}
	return "$ " + line.text + "\n" + screen.Text()
}

// piped runs a command as a script does, with its two outputs in one file.
func (s pageStage) piped(line typedLine) string {
	s.t.Helper()
	c := s.inLab(line.text + line.flags)
	said := new(bytes.Buffer)
	c.Stdout, c.Stderr = said, said
	if code := exitCode(c.Run()); code != line.code {
		s.t.Fatalf("%s: exit code %d, want %d:\n%s", line.text, code, line.code, said)
	}
	return "$ " + line.text + line.flags + "\n" + strings.Trim(said.String(), "\n") + "\n"
}

// chapter shows what the commands print. What is on the page already stays if only what
// passes has changed; what is also in other is left out.
func chapter(title string, all, other []string, page []block) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n## %s\n", title)
	for i, printed := range all {
		command, output, _ := strings.Cut(printed, "\n")
		if other != nil {
			if _, shown, _ := strings.Cut(other[i], "\n"); sameWords(shown, output) {
				fmt.Fprintf(&b, "\n`%s` prints the same.\n", strings.TrimPrefix(command, "$ "))
				continue
			}
		}
		for _, b := range page {
			if strings.HasPrefix(b.text, command+"\n") && (showsStill(b.text, printed) || sameWords(b.text, printed)) {
				printed = b.text
				break
			}
		}
		fmt.Fprintf(&b, "\n```text\n%s```\n", excerpt("", printed))
	}
	return b.String()
}

// sameWords compares outputs that are wrapped at different widths, or elsewhere because what passes is longer.
func sameWords(a, b string) bool {
	return slices.Equal(strings.Fields(constant(a)), strings.Fields(constant(b)))
}

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

// progressText returns a progress line without its variable parts. Which lines appear depends on timing, so a page
// shows only some of them; what a step waits for varies completely, so those lines are "".
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
			must.Equal(t, "value", c.want, showsStill(c.page, printed))
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
			must.Equal(t, "value", c.want, got)
			must.Hold(t, showsStill(got, printed), "it does not show what was printed")
		})
	}
}
