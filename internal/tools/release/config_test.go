package release

import (
	"slices"
	"testing"

	"github.com/goreleaser/goreleaser/v2/pkg/config"
)

// TestConfig has goreleaser read its configuration, in which it knows every key.
func TestConfig(t *testing.T) {
	t.Parallel()
	project := must(config.Load("../../../.goreleaser.yaml"))(t)
	for i, want := range [][]string{platforms, operatorPlatforms} {
		var targets []string
		for _, goos := range project.Builds[i].Goos {
			for _, goarch := range project.Builds[i].Goarch {
				targets = append(targets, goos+"_"+goarch)
			}
		}
		slices.Sort(targets)
		if !slices.Equal(targets, want) {
			t.Errorf("%s is built for %q, want %q", project.Builds[i].Binary, targets, want)
		}
	}
	if ids := project.Archives[0].IDs; !slices.Equal(ids, []string{"recast"}) {
		t.Errorf("archives have %q", ids)
	}
	if project.Release.Disable != "true" || len(project.Signs)+len(project.DockerSigns)+len(project.DockersV2) > 0 {
		t.Error("it signs or publishes, beside what compiles")
	}
}
