package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

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
	if err := yaml.Unmarshal([]byte(repositoryFile(t, ".goreleaser.yaml")), &g); err != nil {
		t.Fatal(err)
	}
	build := g.Builds[0]
	for _, set := range regexp.MustCompile(`-X main\.(\w+)=`).FindAllStringSubmatch(build.Ldflags[0], -1) {
		if !strings.Contains(repositoryFile(t, "cmd/recast/version.go"), "\n\t"+set[1]+" ") {
			t.Errorf("the linker sets %s, which is no variable of version.go", set[1])
		}
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
		if !strings.Contains(repositoryFile(t, hook), `"$out/`+dir+`"`) {
			t.Errorf("%s makes no %s", hook, dir)
		}
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
	b, err := os.ReadFile("../../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
