package main

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// customManager is the search configuration of the Renovate custom manager of that name.
type customManager struct {
	Strategy     string   `json:"matchStringsStrategy"`
	MatchStrings []string `json:"matchStrings"`
	Files        []string `json:"managerFilePatterns"`
	Datasource   string   `json:"datasourceTemplate"`
}

func renovatePreset(t *testing.T) []customManager {
	t.Helper()
	b, err := os.ReadFile("../../examples/renovate/default.json")
	if err != nil {
		t.Fatal(err)
	}
	var preset struct {
		CustomManagers []customManager `json:"customManagers"`
	}
	if err := json.Unmarshal(b, &preset); err != nil {
		t.Fatal(err)
	}
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
	example, err := os.ReadFile("../../examples/recast.yaml")
	if err != nil {
		t.Fatal(err)
	}
	digest := "sha256:" + strings.Repeat("0123456789abcdef", 4)
	cases := map[string]struct {
		text string
		want []string
	}{
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
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var found []string
			for _, m := range managers {
				found = append(found, m.find(t, c.text)...)
			}
			if diff := cmp.Diff(c.want, found); diff != "" {
				t.Errorf("found (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRenovateReadsTheCronJob: the manager of manifests reads no files by default.
func TestRenovateReadsTheCronJob(t *testing.T) {
	t.Parallel()
	var preset struct {
		Kubernetes struct {
			Files []string `json:"managerFilePatterns"`
		} `json:"kubernetes"`
	}
	if err := json.Unmarshal([]byte(repositoryFile(t, "examples/renovate/default.json")), &preset); err != nil {
		t.Fatal(err)
	}
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
			if pattern.MatchString(file) != want {
				t.Errorf("%s: %q finds it: %t", file, m.Files[0], !want)
			}
		}
	}
}
