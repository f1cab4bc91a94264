package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/live/emulator"
)

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
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	old, err := os.ReadFile(transcriptPage)
	if err != nil {
		t.Fatal(err)
	}
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

// playFirstHour returns each command with what it prints, in a lab of its own.
func playFirstHour(t *testing.T, play func(pageStage, typedLine) string) []string {
	s := newPageStage(t)
	const command = "bin/recast lab up --dir lab --no-config"
	end := s.lab(command)
	s.dir = filepath.Join(s.dir, "lab")
	var all []string
	for _, line := range firstHour {
		all = append(all, s.anonymous(play(s, line)))
	}
	return append([]string{"$ " + command + "\n" + s.anonymous(end()) + "$ cd lab && . ./env\n"}, all...)
}

func (s pageStage) inLab(command string) *exec.Cmd {
	var unused bytes.Buffer
	return s.shell(". ./env; "+command, &unused)
}

// typed types a command on a terminal, and its answers, and returns what the terminal
// shows then.
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
