package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// TestMakeExample runs make in the directory of a lab.
func TestMakeExample(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	m := maker{openLab(t)}
	m.copies("../../examples/make/Makefile", "Makefile")
	m.says(exitDone, "in sync", "drift")
	m.typed(exitDone, "lab", "patch", "iscsi-tools", "--dir", ".")
	m.says(exitDone, "extension iscsi-tools v0.2.0: sha256:", "update")
	m.says(exitDone, "wk2", "plan")
	m.says(2, "stale    wk1", "drift")
	m.says(exitDone, "wk2 recreated as build", "roll", "YES=1")
	m.says(exitDone, "in sync", "drift")
	m.says(exitDone, "is on storage isos", "images")

	// An edited file is enough to have it locked and built.
	m.replace("schematics/storage.yaml", "customization:\n", "customization:\n  extraKernelArgs: [quiet]\n")
	m.says(exitDone, "schematics/storage.yaml changed", "images")
	m.says(exitDone, "is on storage isos", "images")
	m.says(2, "stale    wk1", "drift")
}

type maker struct{ *terminal }

// says runs make, checks recast's exit code as make reports it, and looks for a text.
func (m maker) says(code int, text string, args ...string) {
	m.t.Helper()
	self, err := os.Executable()
	if err != nil {
		m.t.Fatal(err)
	}
	c := exec.CommandContext(m.t.Context(), "make", append([]string{"RECAST=" + self}, args...)...)
	c.Dir, c.Env = m.dir, append(append(os.Environ(), "RECAST_TEST_MAIN=1", "NO_COLOR=1"), m.env...)
	var b bytes.Buffer
	c.Stdout, c.Stderr = &b, &b
	failed := exitCode(c.Run()) != 0
	said := b.String()
	if wrong := code != exitDone && !strings.Contains(said, "Error "+string(rune('0'+code))); failed != (code != exitDone) || wrong || !strings.Contains(said, text) {
		m.t.Fatalf("make %s: want recast's exit code %d and %q:\n%s", strings.Join(args, " "), code, text, said)
	}
}

func (m maker) copies(from, to string) {
	m.t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.dir, to), b, 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// TestExamplesNameRealCommands checks that every recast command line in the examples is
// valid.
func TestExamplesNameRealCommands(t *testing.T) {
	t.Parallel()
	for file, scripts := range map[string][]string{
		"make/Makefile":          makeRecipes(t, "make/Makefile"),
		"ci/github-actions.yaml": yamlTexts(t, "ci/github-actions.yaml"),
		"ci/gitlab-ci.yaml":      yamlTexts(t, "ci/gitlab-ci.yaml"),
	} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			seen := map[string]bool{}
			for _, args := range recastLines(scripts) {
				if err := understood(args); err != nil {
					t.Errorf("recast %s: %v", strings.Join(args, " "), err)
				}
				seen[args[0]] = true
			}
			for _, want := range []string{"lock", "publish", "plan", "roll", "drift"} {
				if !seen[want] {
					t.Errorf("recast %s is not in it", want)
				}
			}
		})
	}
}

// TestKitNamesRealCommands does the same with the texts of the examples.
func TestKitNamesRealCommands(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"examples/ci/README.md", "examples/kubernetes/README.md"} {
		var scripts []string
		for _, code := range regexp.MustCompile("`(recast [^`]+)`").FindAllStringSubmatch(repositoryFile(t, file), -1) {
			scripts = append(scripts, code[1])
		}
		lines := recastLines(scripts)
		if len(lines) == 0 {
			t.Errorf("%s names no command", file)
		}
		for _, args := range lines {
			if err := understood(args); err != nil {
				t.Errorf("%s: recast %s: %v", file, strings.Join(args, " "), err)
			}
		}
	}
}

// understood says whether recast knows a command and its flags.
func understood(args []string) error {
	root := newRootCmd(&streams{})
	root.InitDefaultCompletionCmd(args...)
	c, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if err := c.ParseFlags(rest); err != nil {
		return err
	}
	return c.ValidateArgs(c.Flags().Args())
}

// recastLines finds the command lines that start with recast.
func recastLines(scripts []string) [][]string {
	var lines [][]string
	for _, script := range scripts {
		for _, command := range regexp.MustCompile(`\n|&&|\|\|?|;|\(`).Split(script, -1) {
			command, _, _ = strings.Cut(command, ">")
			command, _, _ = strings.Cut(command, " #")
			if fields := strings.Fields(command); len(fields) > 1 && fields[0] == "recast" {
				lines = append(lines, fields[1:])
			}
		}
	}
	return lines
}

// makeRecipes returns the recipes of a Makefile as make would run them with YES=1.
func makeRecipes(t *testing.T, name string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../examples", name))
	if err != nil {
		t.Fatal(err)
	}
	return []string{strings.NewReplacer("$(RECAST)", "recast", "$(if $(YES),--yes)", "--yes").Replace(string(b))}
}

// yamlTexts returns all scalars of a YAML file.
func yamlTexts(t *testing.T, name string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../examples", name))
	if err != nil {
		t.Fatal(err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var texts []string
	nodes := []*yaml.Node{&doc}
	for len(nodes) > 0 {
		n := nodes[0]
		nodes = append(nodes[1:], n.Content...)
		if n.Kind == yaml.ScalarNode {
			texts = append(texts, n.Value)
		}
	}
	return texts
}
