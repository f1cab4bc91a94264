package release

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// job is one of the workflow that makes a release.
type job struct {
	Permissions        map[string]string
	Environment, Needs string
	Steps              []struct{ Uses, Run string }
}

func releaseJobs(t *testing.T) map[string]job {
	t.Helper()
	var workflow struct {
		Permissions map[string]string
		Jobs        map[string]job
	}
	mustDo(t, yaml.Unmarshal([]byte(read(t, ".github/workflows/release.yaml")), &workflow))
	if workflow.Permissions == nil || len(workflow.Permissions) > 0 {
		t.Errorf("each job has %v, want permissions: {}", workflow.Permissions)
	}
	return workflow.Jobs
}

// TestBuiltWithoutRights: one job builds, and can read the repository alone. One that can write or has an identity to
// sign with waits for a person, checks nothing out and compiles nothing.
func TestBuiltWithoutRights(t *testing.T) {
	t.Parallel()
	actions := regexp.MustCompile(`^(actions/download-artifact|sigstore/cosign-installer|docker/login-action|actions/attest-build-provenance)@`)
	builds := regexp.MustCompile(`\b(make|go|goreleaser|buildx?|npm|bash|internal/tools)\b`)
	var building []string
	for name, j := range releaseJobs(t) {
		if maps.Equal(j.Permissions, map[string]string{"contents": "read"}) {
			building = append(building, name)
			continue
		}
		if j.Environment != "release" || j.Needs != "build" {
			t.Errorf("%s has %v, in the environment %q, and after %q: want release, and build", name, j.Permissions, j.Environment, j.Needs)
		}
		for _, s := range j.Steps {
			if s.Uses != "" && !actions.MatchString(s.Uses) || builds.MatchString(s.Run) {
				t.Errorf("%s has %v, and runs %s%s", name, j.Permissions, s.Uses, s.Run)
			}
		}
	}
	if !slices.Equal(building, []string{"build"}) {
		t.Errorf("the jobs that can only read are %q, want build", building)
	}
	text, _, _ := strings.Cut(read(t, ".github/workflows/release.yaml"), "\n  publish:\n")
	if regexp.MustCompile(`secrets\.|github\.token|login-action|cosign`).MatchString(text) {
		t.Error("what builds has a token")
	}
}

// TestPublished runs the commands of the job that publishes, with programs that only say how they were called.
func TestPublished(t *testing.T) {
	t.Parallel()
	const image, files = "ghcr.io/recast-sh/recast", "recast_linux_amd64.tar.gz recast-operator.tgz recast_linux_amd64.cdx.json checksums.txt"
	push := func(tag string) string {
		return "skopeo copy --all --digestfile DIR/digest oci-archive:image.tar docker://" + image + ":" + tag + "\n"
	}
	rest := func(tag, prerelease string) string {
		return "cosign sign --yes " + image + "@sha256:1\ncosign sign-blob --yes --bundle=checksums.txt.sigstore.json checksums.txt\n" +
			"gh release create " + tag + " --repo recast-sh/recast --draft --verify-tag --prerelease=" + prerelease + " --title " + tag + " --notes-file notes.md " + files + " checksums.txt.sigstore.json\n"
	}
	for name, c := range map[string]struct{ tag, changed, want string }{
		"version":     {"v1.2.3", "", push("v1.2.3") + push("v1.2") + push("latest") + rest("v1.2.3", "false")},
		"prerelease":  {"v1.2.3-rc.1", "", push("v1.2.3-rc.1") + rest("v1.2.3-rc.1", "true")},
		"archive":     {"v1.2.3", "recast_linux_amd64.tar.gz", ""},
		"image":       {"v1.2.3", "image.tar", ""},
		"sums":        {"v1.2.3", "sums.txt", ""},
		"one more":    {"v1.2.3", "other.tar.gz", ""},
		"hidden file": {"v1.2.3", ".other", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir, dist := t.TempDir(), t.TempDir()
			for program, also := range map[string]string{"skopeo": "echo sha256:1 >$4\n", "cosign": "", "gh": ""} {
				mustDo(t, os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/bash\necho "+program+" $* >>$RUNNER_TEMP/calls\n"+also), 0o755))
			}
			var sums strings.Builder
			for _, file := range strings.Fields(files + " image.tar notes.md") {
				mustDo(t, os.WriteFile(filepath.Join(dist, file), []byte(file), 0o644))
				fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256([]byte(file)), file)
			}
			mustDo(t, os.WriteFile(filepath.Join(dist, "sums.txt"), []byte(sums.String()), 0o644))
			if c.changed != "" {
				mustDo(t, os.WriteFile(filepath.Join(dist, c.changed), nil, 0o644))
			}
			var err error
			for _, s := range releaseJobs(t)["publish"].Steps {
				if s.Run == "" || err != nil {
					continue
				}
				run := exec.CommandContext(t.Context(), "bash", "-e", "-c", s.Run)
				run.Dir = dist
				run.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "RUNNER_TEMP="+dir, "GITHUB_OUTPUT="+filepath.Join(dir, "output"), "LC_ALL=C.UTF-8",
					"GITHUB_REF_NAME="+c.tag, "GITHUB_REPOSITORY=recast-sh/recast", "IMAGE="+image, fmt.Sprintf("SUMS=%x", sha256.Sum256([]byte(sums.String()))))
				err = run.Run()
			}
			calls, _ := os.ReadFile(filepath.Join(dir, "calls")) // none if nothing was published
			if got := strings.ReplaceAll(string(calls), dir, "DIR"); got != c.want || (err == nil) != (c.want != "") {
				t.Errorf("%v, it called\n%s\nwant\n%s", err, got, c.want)
			}
		})
	}
}

// TestPinned: the base image and the actions that make a release are those that their digests name.
func TestPinned(t *testing.T) {
	t.Parallel()
	if !regexp.MustCompile(`(?m)^ARG BASE=\S+:nonroot@sha256:[0-9a-f]{64}$`).MatchString(read(t, "Containerfile")) {
		t.Error("Containerfile: BASE has no digest")
	}
	workflows, err := filepath.Glob("../../../.github/workflows/*.yaml")
	if err != nil || len(workflows) == 0 {
		t.Fatalf("workflows: %q, %v", workflows, err)
	}
	for _, file := range workflows {
		for line := range strings.Lines(read(t, ".github/workflows/"+filepath.Base(file))) {
			if strings.Contains(line, "uses:") && !regexp.MustCompile(`uses: \S+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`).MatchString(strings.TrimSpace(line)) {
				t.Errorf("%s: %s", filepath.Base(file), line)
			}
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	return string(must(os.ReadFile(filepath.Join("../../..", name)))(t))
}
