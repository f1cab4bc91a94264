package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/sim/must"
)

// TestMakeExample runs make in the directory of a lab.
func TestMakeExample(t *testing.T) {
	long(t)
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
	self := must.Get(os.Executable())(m.t)
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
	b := must.Get(os.ReadFile(from))(m.t)
	must.Do(m.t, os.WriteFile(filepath.Join(m.dir, to), b, 0o600))
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
	b := must.Get(os.ReadFile(filepath.Join("../../examples", name)))(t)
	return []string{strings.NewReplacer("$(RECAST)", "recast", "$(if $(YES),--yes)", "--yes").Replace(string(b))}
}

// yamlTexts returns all scalars of a YAML file.
func yamlTexts(t *testing.T, name string) []string {
	t.Helper()
	b := must.Get(os.ReadFile(filepath.Join("../../examples", name)))(t)
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

// customManager is the search configuration of the Renovate custom manager of that name.
type customManager struct {
	Strategy     string   `json:"matchStringsStrategy"`
	MatchStrings []string `json:"matchStrings"`
	Files        []string `json:"managerFilePatterns"`
	Datasource   string   `json:"datasourceTemplate"`
}

func renovatePreset(t *testing.T) []customManager {
	t.Helper()
	b := must.Get(os.ReadFile("../../examples/renovate/default.json"))(t)
	var preset struct {
		CustomManagers []customManager `json:"customManagers"`
	}
	must.Do(t, json.Unmarshal(b, &preset))
	return preset.CustomManagers
}

// find lists what a manager finds, as Renovate would: datasource, name, version, digest.
func (m customManager) find(t *testing.T, text string) []string {
	t.Helper()
	parts := []string{text}
	patterns := m.MatchStrings
	if m.Strategy == "recursive" { // each pattern looks into what the one before has found
		for ; len(patterns) > 1; patterns = patterns[1:] {
			var inner []string
			for _, part := range parts {
				inner = append(inner, regexp.MustCompile(patterns[0]).FindAllString(part, -1)...)
			}
			parts = inner
		}
	}
	var found []string
	for _, part := range parts {
		for _, pattern := range patterns {
			re := regexp.MustCompile(pattern)
			for _, match := range re.FindAllStringSubmatch(part, -1) {
				named := map[string]string{"datasource": m.Datasource}
				for i, name := range re.SubexpNames() {
					if match[i] != "" {
						named[name] = match[i]
					}
				}
				found = append(found, strings.TrimSpace(strings.Join([]string{named["datasource"], named["depName"], named["currentValue"], named["currentDigest"]}, " ")))
			}
		}
	}
	return found
}

func TestRenovateFindsWhatRecastPins(t *testing.T) {
	t.Parallel()
	example := must.Get(os.ReadFile("../../examples/recast.yaml"))(t)
	digest := "sha256:" + strings.Repeat("0123456789abcdef", 4)
	type row struct {
		text string
		want []string
	}
	cases := map[string]row{
		"the example": {string(example), []string{"github-releases siderolabs/talos v1.13.9", "docker ghcr.io/acme/frr 1.7.15"}},
		"Kubernetes below its comment": {
			"# renovate: datasource=github-releases depName=kubernetes/kubernetes\nkubernetes: {version: v1.35.4}\n",
			[]string{"github-releases kubernetes/kubernetes v1.35.4"},
		},
		"a block": {
			"kubernetes:\n  # renovate: datasource=github-releases depName=kubernetes/kubernetes\n  version: \"v1.35.4\"\n",
			[]string{"github-releases kubernetes/kubernetes v1.35.4"},
		},
		"tags and digests": {
			`bgp: {file: a.yaml, extensions: ["ghcr.io/acme/frr:1.7.15@` + digest + `", 'registry.example:5000/x/y:v2']}`,
			[]string{"docker ghcr.io/acme/frr 1.7.15 " + digest, "docker registry.example:5000/x/y v2"},
		},
		"a list of them": {
			"bgp:\n  extensions:\n    - ghcr.io/acme/frr:1.7.15@" + digest + "\n    - \"ghcr.io/acme/bird:2.0\"\n  file: a.yaml\n",
			[]string{"docker ghcr.io/acme/frr 1.7.15 " + digest, "docker ghcr.io/acme/bird 2.0"},
		},
		"the registry of the official ones": {"images:\n  extensions: ghcr.io/siderolabs\n  mirror: ghcr.io/acme/talos\n", nil},
		"a digest alone":                    {`extensions: ["ghcr.io/acme/frr@` + digest + `"]`, nil},
	}
	managers := renovatePreset(t)
	must.Each(t, cases, func(t *testing.T, c row) {
		var found []string
		for _, m := range managers {
			found = append(found, m.find(t, c.text)...)
		}
		must.Equal(t, "found", c.want, found)
	})
}

// TestRenovateReadsTheCronJob: the manager of manifests reads no files by default.
func TestRenovateReadsTheCronJob(t *testing.T) {
	t.Parallel()
	var preset struct {
		Kubernetes struct {
			Files []string `json:"managerFilePatterns"`
		} `json:"kubernetes"`
	}
	must.Do(t, json.Unmarshal([]byte(repositoryFile(t, "examples/renovate/default.json")), &preset))
	if len(preset.Kubernetes.Files) != 1 || !regexp.MustCompile(strings.Trim(preset.Kubernetes.Files[0], "/")).MatchString("recast/drift-cronjob.yaml") {
		t.Errorf("files %q", preset.Kubernetes.Files)
	}
}

// TestRenovateReadsRecastYAML: in any directory, and nothing else.
func TestRenovateReadsRecastYAML(t *testing.T) {
	t.Parallel()
	for _, m := range renovatePreset(t) {
		if len(m.Files) != 1 {
			t.Fatalf("files %q", m.Files)
		}
		pattern := regexp.MustCompile(strings.Trim(m.Files[0], "/"))
		for file, want := range map[string]bool{"recast.yaml": true, "clusters/home/recast.yml": true, "notrecast.yaml": false, "recast.yaml.orig": false} {
			must.Equal(t, file+": found by "+m.Files[0], want, pattern.MatchString(file))
		}
	}
}

// goreleaser is the part of .goreleaser.yaml that must agree with other files. make
// release-snapshot checks the rest.
type goreleaser struct {
	Before struct{ Hooks []string }
	Builds []struct {
		Main, Binary     string
		Tags, Env, Flags []string
		Ldflags          []string
	}
	Archives []struct {
		Files []struct{ Src string }
	}
	SBOMs []struct {
		Cmd  string
		Args []string
	} `yaml:"sboms"`
	Images []struct {
		Dockerfile string
		Images     []string
	} `yaml:"dockers_v2"`
}

// TestReleaseAgrees compares the release configuration with the files that it uses.
func TestReleaseAgrees(t *testing.T) {
	t.Parallel()
	var g goreleaser
	must.Do(t, yaml.Unmarshal([]byte(repositoryFile(t, ".goreleaser.yaml")), &g))
	build := g.Builds[0]
	for _, set := range regexp.MustCompile(`-X main\.(\w+)=`).FindAllStringSubmatch(build.Ldflags[0], -1) {
		must.Contain(t, "root.go", repositoryFile(t, "cmd/recast/root.go"), "\n\t"+set[1]+" ")
	}
	makefile := repositoryFile(t, "Makefile")
	env, cgo, _ := strings.Cut(build.Env[0], "=")
	if !strings.Contains(makefile, "\nexport "+env+" := "+cgo+"\n") || !strings.Contains(makefile, " "+build.Flags[0]+" -tags="+strings.Join(build.Tags, ",")+" -gcflags=all=-dwarf=false)\n") { // a release has nothing for debuggers, either: -s -w
		t.Errorf("make build builds otherwise than with %q %q %q", build.Env, build.Flags, build.Tags)
	}
	for _, f := range g.Archives[0].Files {
		if !strings.HasPrefix(f.Src, "bin/") { // those that a hook makes
			repositoryFile(t, f.Src)
		}
	}
	hook, _, _ := strings.Cut(g.Before.Hooks[0], " ")
	for _, dir := range []string{"completions", "man"} {
		must.Contain(t, hook, repositoryFile(t, hook), `"$out/`+dir+`"`)
	}
	sbom := repositoryFile(t, "internal/tools/cmd/"+g.SBOMs[0].Cmd+"/main.go")
	for _, arg := range g.SBOMs[0].Args {
		if name, ok := strings.CutPrefix(arg, "-"); ok && !strings.Contains(sbom, `"`+name+`"`) {
			t.Errorf("%s takes no -%s", g.SBOMs[0].Cmd, name)
		}
	}
	for _, b := range g.Builds {
		repositoryFile(t, b.Main+"/main.go")
		if !strings.Contains(repositoryFile(t, g.Images[0].Dockerfile), "\nCOPY ${TARGETPLATFORM}/"+b.Binary+" /usr/bin/"+b.Binary+"\n") {
			t.Errorf("%s does not copy %s from where goreleaser puts it", g.Images[0].Dockerfile, b.Binary)
		}
	}
	if !slices.Contains(g.Images[0].Images, "ghcr.io/recast-sh/recast") {
		t.Errorf("the image is called %q; the examples and the Renovate preset call it otherwise", g.Images[0].Images)
	}
}

func repositoryFile(t *testing.T, name string) string {
	t.Helper()
	b := must.Get(os.ReadFile("../../" + name))(t)
	return string(b)
}
