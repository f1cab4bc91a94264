package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	network "k8s.io/api/networking/v1"
	rbac "k8s.io/api/rbac/v1"
	objectyaml "sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/docs/runbooks"
	"github.com/recast-sh/recast/internal/fault"
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

// TestExamplesNameRealCommands checks that every recast command line in the examples is valid.
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
				err := understood(args)
				must.Hold(t, err == nil, "recast %s: %v", strings.Join(args, " "), err)
				seen[args[0]] = true
			}
			for _, want := range []string{"lock", "publish", "plan", "roll", "drift"} {
				must.Hold(t, seen[want], "recast %s is not in it", want)
			}
		})
	}
}

// TestPipelinesKeepUnreviewedCodeApart: a job for a pull request has a runner and an environment of its own, whose
// commands only read; every other job is for the main branch.
func TestPipelinesKeepUnreviewedCodeApart(t *testing.T) {
	t.Parallel()
	type job struct {
		If          string    `yaml:"if"`
		Rules       yaml.Node `yaml:"rules"`
		RunsOn      []string  `yaml:"runs-on"`
		Tags        []string  `yaml:"tags"`
		Environment any       `yaml:"environment"`
		Steps       yaml.Node `yaml:"steps"`
		Script      yaml.Node `yaml:"script"`
	}
	text := func(n yaml.Node) string { return string(must.Get(yaml.Marshal(&n))(t)) }
	jobs := map[string]job{}
	var hub struct{ Jobs map[string]job }
	must.Do(t, yaml.Unmarshal(must.Get(os.ReadFile("../../examples/ci/github-actions.yaml"))(t), &hub))
	lab := map[string]yaml.Node{}
	must.Do(t, yaml.Unmarshal(must.Get(os.ReadFile("../../examples/ci/gitlab-ci.yaml"))(t), &lab))
	maps.Copy(jobs, hub.Jobs)
	for name, n := range lab {
		var j job
		if n.Kind == yaml.MappingNode && n.Decode(&j) == nil && len(j.Script.Content) > 0 {
			jobs["gitlab "+name] = j
		}
	}
	reviews := 0
	for name, j := range jobs {
		on, where := strings.Join(append(j.RunsOn, j.Tags...), " "), fmt.Sprint(j.Environment)
		commands := recastLines(slices.Concat(scalars(&j.Steps), scalars(&j.Script)))
		must.Hold(t, len(commands) > 0, "%s runs nothing", name)
		if !strings.Contains(j.If+text(j.Rules), "pull_request") && !strings.Contains(text(j.Rules), "merge_request_event") {
			must.Hold(t, !strings.Contains(on, "review") && (strings.Contains(where, "main") || strings.Contains(where, "cluster")), "%s runs on %q in %s", name, on, where)
			continue
		}
		reviews++
		must.Hold(t, strings.Contains(on, "review") && strings.Contains(where, "review"), "%s runs on %q in %s", name, on, where)
		for _, c := range commands {
			must.Hold(t, c[0] == "lock" || c[0] == "drift", "%s runs recast %s", name, strings.Join(c, " "))
		}
	}
	must.Equal(t, "jobs for what nobody has reviewed, of so many", []int{2, 11}, []int{reviews, len(jobs)})
}

// TestKitNamesRealCommands does the same with the texts of the examples.
func TestKitNamesRealCommands(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"examples/ci/README.md", "examples/kubernetes/README.md"} {
		lines := recastLines(spansOf(repositoryFile(t, file)))
		must.Hold(t, len(lines) != 0, "%s names no command", file)
		for _, args := range lines {
			err := understood(args)
			must.Hold(t, err == nil, "%s: recast %s: %v", file, strings.Join(args, " "), err)
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

func makeRecipes(t *testing.T, name string) []string {
	t.Helper()
	b := must.Get(os.ReadFile(filepath.Join("../../examples", name)))(t)
	return []string{strings.NewReplacer("$(RECAST)", "recast", "$(if $(YES),--yes)", "--yes").Replace(string(b))}
}

func yamlTexts(t *testing.T, name string) []string {
	t.Helper()
	b := must.Get(os.ReadFile(filepath.Join("../../examples", name)))(t)
	var doc yaml.Node
	err := yaml.Unmarshal(b, &doc)
	must.Be(t, err == nil, "%s: %v", name, err)
	return scalars(&doc)
}

func scalars(doc *yaml.Node) (texts []string) {
	nodes := []*yaml.Node{doc}
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
			outer := regexp.MustCompile(patterns[0])
			parts = slices.Concat(cluster.Each(parts, func(part string) []string { return outer.FindAllString(part, -1) })...)
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
		found := slices.Concat(cluster.Each(managers, func(m customManager) []string { return m.find(t, c.text) })...)
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
		must.Be(t, len(m.Files) == 1, "files %q", m.Files)
		pattern := regexp.MustCompile(strings.Trim(m.Files[0], "/"))
		for file, want := range map[string]bool{"recast.yaml": true, "clusters/home/recast.yml": true, "notrecast.yaml": false, "recast.yaml.orig": false} {
			must.Equal(t, file+": found by "+m.Files[0], want, pattern.MatchString(file))
		}
	}
}

// goreleaser is the part of .goreleaser.yaml that must agree with other files. make release-snapshot checks the rest.
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
}

// TestReleaseAgrees compares the release configuration with the files that it uses.
func TestReleaseAgrees(t *testing.T) {
	t.Parallel()
	var g goreleaser
	must.Do(t, yaml.Unmarshal([]byte(repositoryFile(t, ".goreleaser.yaml")), &g))
	build := g.Builds[0]
	for _, set := range regexp.MustCompile(`-X main\.(\w+)=`).FindAllStringSubmatch(build.Ldflags[0], -1) {
		must.Contain(t, "main.go", repositoryFile(t, "cmd/recast/main.go"), "\n\t"+set[1]+" ")
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
		must.Contain(t, "Containerfile", repositoryFile(t, "Containerfile"), "\nCOPY ${TARGETPLATFORM}/"+b.Binary+" /usr/bin/"+b.Binary+"\n")
	}
	// So the examples and the Renovate preset call the image.
	must.Contain(t, "the workflow", repositoryFile(t, ".github/workflows/release.yaml"), "\n    env: {IMAGE: ghcr.io/recast-sh/recast}\n")
}

func repositoryFile(t *testing.T, name string) string {
	t.Helper()
	b := must.Get(os.ReadFile("../../" + name))(t)
	return string(b)
}

const manifests = "../../examples/kubernetes/drift-cronjob.yaml"

// nightly is the content of the manifests. Unknown and duplicate fields fail the test.
type nightly struct {
	core.Namespace
	account core.ServiceAccount
	role    rbac.ClusterRole
	binding rbac.ClusterRoleBinding
	config  core.ConfigMap
	job     batch.CronJob
	network network.NetworkPolicy
}

func readNightly(t *testing.T) (n nightly) {
	t.Helper()
	text := must.Get(os.ReadFile(manifests))(t)
	kinds := map[string]any{
		"Namespace": &n.Namespace, "ServiceAccount": &n.account, "ClusterRole": &n.role, "ClusterRoleBinding": &n.binding,
		"ConfigMap": &n.config, "CronJob": &n.job, "NetworkPolicy": &n.network,
	}
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var of struct{ Kind string }
		must.Do(t, objectyaml.Unmarshal([]byte(doc), &of))
		into, ok := kinds[of.Kind]
		must.Be(t, ok, "kind %q, or two of it", of.Kind)
		err := objectyaml.UnmarshalStrict([]byte(doc), into)
		must.Hold(t, err == nil, "%s: %v", of.Kind, err)
		delete(kinds, of.Kind)
	}
	must.Hold(t, len(kinds) == 0, "missing: %v", kinds)
	return n
}

// TestCronJobFitsTogether: each object refers to the others by their correct names.
func TestCronJobFitsTogether(t *testing.T) {
	t.Parallel()
	n := readNightly(t)
	pod := n.job.Spec.JobTemplate.Spec.Template
	for what, names := range map[string][2]string{
		"the binding's role":        {n.binding.RoleRef.Name, n.role.Name},
		"the binding's account":     {n.binding.Subjects[0].Name, n.account.Name},
		"the binding's namespace":   {n.binding.Subjects[0].Namespace, n.Name},
		"the pod's account":         {pod.Spec.ServiceAccountName, n.account.Name},
		"the CronJob's namespace":   {n.job.Namespace, n.Name},
		"the kubeconfig's volume":   {volume(t, pod.Spec, "kubeconfig").ConfigMap.Name, n.config.Name},
		"the network policy's pods": {n.network.Spec.PodSelector.MatchLabels["app.kubernetes.io/name"], pod.Labels["app.kubernetes.io/name"]},
	} {
		must.Equal(t, what, names[1], names[0])
	}
	for _, c := range pod.Spec.Containers {
		for _, m := range c.VolumeMounts {
			volume(t, pod.Spec, m.Name)
			must.Hold(t, m.ReadOnly || m.Name == "metrics", "%s may write to %s", c.Name, m.Name)
		}
	}
}

// TestCronJobTypesRecast: the command exists, and its files are mounted.
func TestCronJobTypesRecast(t *testing.T) {
	t.Parallel()
	pod := readNightly(t).job.Spec.JobTemplate.Spec.Template.Spec
	i := slices.IndexFunc(pod.Containers, func(c core.Container) bool { return strings.HasPrefix(c.Image, "ghcr.io/recast-sh/recast:") })
	must.Be(t, i >= 0, "no container of recast's image")
	c := pod.Containers[i]
	err := understood(c.Args)
	must.Hold(t, err == nil && c.Args[0] == "drift", "recast %s: %v", strings.Join(c.Args, " "), err)
	files := regexp.MustCompile(`^/[a-z]+/`)
	for _, arg := range append(c.Args, c.Env[1].Value, c.Env[2].Value) {
		dir := strings.TrimSuffix(files.FindString(arg), "/")
		if dir != "" && !slices.ContainsFunc(c.VolumeMounts, func(m core.VolumeMount) bool { return m.MountPath == dir }) {
			t.Errorf("nothing is mounted at %s", dir)
		}
	}
	for _, c := range pod.Containers {
		s := c.SecurityContext
		if s == nil || !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) {
			t.Errorf("%s may do more than it must: %+v", c.Name, s)
		}
	}
}

func volume(t *testing.T, pod core.PodSpec, name string) core.Volume {
	t.Helper()
	i := slices.IndexFunc(pod.Volumes, func(v core.Volume) bool { return v.Name == name })
	must.Be(t, i >= 0, "no volume %s", name)
	return pod.Volumes[i]
}

// TestNightlyToken creates the token with the example's instructions in a lab, and
// checks that the CronJob works with it.
func TestNightlyToken(t *testing.T) {
	long(t)
	t.Parallel()
	term := openLab(t, "--control-planes", "1", "--workers", "1")
	readme := must.Get(os.ReadFile(filepath.Join(filepath.Dir(manifests), "README.md")))(t)
	token := ""
	for _, line := range regexp.MustCompile(`(?m)^pveum (.+)$`).FindAllStringSubmatch(string(readme), -1) {
		args := strings.Fields(strings.NewReplacer(`"`, "", `'`, "").Replace(line[1]))
		out, _ := term.typed(exitDone, append([]string{"lab", "pveum", "--dir", term.dir}, args...)...)
		if secret := regexp.MustCompile(`full-tokenid (\S+)\nvalue (\S+)`).FindStringSubmatch(out); secret != nil {
			token = secret[1] + "=" + secret[2]
		}
	}
	must.Be(t, token != "", "the instructions make no token")
	term.env = append(term.env, "PROXMOX_VE_API_TOKEN="+token)
	without := filepath.Join(term.dir, "without.yaml") // the secrets of machine configurations
	text := strings.Replace(term.read("recast.yaml"), "talos:\n", "talos:\n  machineConfigs: ./nowhere\n", 1)
	must.Do(t, os.WriteFile(without, []byte(text), 0o600))
	file := filepath.Join(t.TempDir(), "recast-drift.prom")
	out, _ := term.typed(exitDone, "drift", "--what", "image", "--config", without, "--metrics-file", file)
	must.Contain(t, "drift", out, "2 nodes in sync")
	metrics, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(metrics), `recast_nodes{cluster="lab",command="drift",state="in-sync"} 2`) {
		t.Errorf("%v\n%s", err, metrics)
	}
	_, said := term.typed(exitConfig, "plan", "--config", without)
	must.Contain(t, "plan without the machine configurations", said, "talos.machineConfigs")
	out, _ = term.typed(exitRefused, "doctor")
	must.Contain(t, "doctor with a token that only looks", out, "problem VM.Allocate")
}

// Every error of a command says what is safe, what to run next, and which page explains it; that page exists.
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
		must.Hold(t, strings.HasPrefix(page, "# "+string(code)+": ") && runbooks.Title(string(code)) != "",
			"docs/runbooks/%s.md: its heading is not %q and a title", code, code)
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
			row := "| [" + code + "](" + code + ".md) | " + runbooks.Title(code) + " |"
			must.Hold(t, strings.Contains(string(readme), row), "docs/runbooks/README.md lacks the row\n%s", row)
		}
	}
	must.Equal(t, "pages", fault.AllCodes(), have)
}

func pagesOf(t *testing.T, do func(file, text string)) {
	t.Helper()
	for _, code := range fault.AllCodes() {
		text, _ := runbooks.Page(string(code))
		do("docs/runbooks/"+string(code)+".md", text)
	}
}

// spansOf lists the commands of recast within a text's sentences.
func spansOf(text string) []string {
	spans := regexp.MustCompile("`(recast [^`]+)`").FindAllStringSubmatch(text, -1)
	return cluster.Each(spans, func(span []string) string { return span[1] })
}

func TestRunbooksNameRealCommands(t *testing.T) {
	t.Parallel()
	pagesOf(t, func(file, text string) {
		lines := spansOf(text)
		for _, block := range strings.Split(text, "```sh\n")[1:] {
			block, _, _ = strings.Cut(block, "```")
			for line := range strings.Lines(block) {
				if strings.HasPrefix(line, "recast ") {
					lines = append(lines, line)
				}
			}
		}
		for _, line := range lines {
			err := parses(line)
			must.Hold(t, err == nil, "%s: %s: %v", file, strings.TrimSpace(line), err)
		}
	})
	must.Hold(t, parses("recast roll --only") != nil && parses("recast rol") != nil && parses("recast remove a b") != nil,
		"an invalid command line is accepted")
}

// parses returns recast's error for a line of a shell, up to where another command follows.
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
				must.Hold(t, len(part) <= 9 || strings.Contains(sources, part) || strings.HasPrefix(part, "recast.yaml:"),
					"%s: no source says %q", file, part)
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
		must.Hold(t, code.Next() != "", "%s: no next step", code)
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
			must.Hold(t, !bare.MatchString(line) || strings.Contains(line, "--system-labels-to-wipe"),
				"%s: %s", p.name, strings.TrimSpace(line))
		}
	}
	for _, line := range []string{"`talosctl reset` of it", "talosctl -n CP1 reset --reboot", "remove it, reset its machine"} {
		must.Hold(t, bare.MatchString(line), "%q passes", line)
	}
}

// A member of etcd must never come back with old data.
func TestNoPageBringsOldEtcdBack(t *testing.T) {
	t.Parallel()
	for _, p := range readPages(t) {
		before, after, restores := strings.Cut(p.text, "qmrestore")
		must.Hold(t, !restores || strings.Contains(after, "remove-member") && !strings.Contains(before, "remove-member"),
			"%s restores a VM and does not say what to do about its etcd member", p.name)
	}
}

// VMID is a node's VM on all pages.
func TestNoPageDestroysANodesVM(t *testing.T) {
	t.Parallel()
	for _, p := range readPages(t) {
		must.Hold(t, !strings.Contains(p.text, "qm destroy VMID") || p.name == "docs/notes/proxmox.md",
			"%s has qm destroy VMID", p.name)
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
		must.Hold(t, !promise.MatchString(safe) || strings.HasPrefix(safe, counts),
			"docs/runbooks/%s.md promises too much: %s", code, safe)
	}
	must.Hold(t, len(risky) >= 9 && risky[fault.EtcdUnhealthy] && risky[fault.UpgradeStuck],
		"only %v are codes of steps with a risk", risky)
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
