package release

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goreleaser/goreleaser/v2/pkg/config"
)

// TestSigned: what is published is signed without a key, and a snapshot needs no cosign.
func TestSigned(t *testing.T) {
	t.Parallel()
	project := must(config.Load("../../../.goreleaser.yaml"))(t)
	for what, signs := range map[string][]config.Sign{"checksum": project.Signs, "manifests": project.DockerSigns} {
		if len(signs) != 1 || signs[0].Artifacts != what || signs[0].Cmd != "cosign" || slices.ContainsFunc(signs[0].Args, func(a string) bool { return strings.Contains(a, "key") }) {
			t.Errorf("%s: signed by %+v", what, signs)
		}
	}
	if script := read(t, "internal/tools/release-snapshot"); !regexp.MustCompile(`(?m)^skip=\S*\bsign\b`).MatchString(script) {
		t.Error("a snapshot is signed")
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
