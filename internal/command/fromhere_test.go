package command

import (
	"slices"
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
)

func TestFilesAreNamedFromHere(t *testing.T) {
	t.Parallel()
	env := []string{"KUBECONFIG=kubeconfig:/etc/kube:../other", "TALOSCONFIG=./talosconfig", "DOCKER_CONFIG=docker", "KUBECONFIG_OTHER=a", "BARE"}
	want := []string{"KUBECONFIG=/here/kubeconfig:/etc/kube:/other", "TALOSCONFIG=/here/talosconfig", "DOCKER_CONFIG=docker", "KUBECONFIG_OTHER=a", "BARE"}
	must.Equal(t, "environment", want, absolutePaths("/here", env))
	got := absolutePaths("/here", []string{"KUBECONFIG=", "TALOSCONFIG="})
	must.Hold(t, slices.Equal(got, []string{"KUBECONFIG=", "TALOSCONFIG="}), "none became %q", got)
}
