package release

import (
	"slices"
	"testing"

	"github.com/goreleaser/goreleaser/v2/pkg/config"
)

// TestConfig has goreleaser read its configuration, in which it knows every key.
func TestConfig(t *testing.T) {
	t.Parallel()
	project, err := config.Load("../../../.goreleaser.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, goos := range project.Builds[0].Goos {
		for _, goarch := range project.Builds[0].Goarch {
			targets = append(targets, goos+"_"+goarch)
		}
	}
	slices.Sort(targets)
	if !slices.Equal(targets, platforms) {
		t.Errorf("built for %q, want %q", targets, platforms)
	}
}
