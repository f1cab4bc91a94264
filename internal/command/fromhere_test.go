package command

import (
	"slices"
	"testing"
)

func TestFilesAreNamedFromHere(t *testing.T) {
	t.Parallel()
	env := []string{"KUBECONFIG=kubeconfig:/etc/kube:../other", "TALOSCONFIG=./talosconfig", "DOCKER_CONFIG=docker", "KUBECONFIG_OTHER=a", "BARE"}
	want := []string{"KUBECONFIG=/here/kubeconfig:/etc/kube:/other", "TALOSCONFIG=/here/talosconfig", "DOCKER_CONFIG=docker", "KUBECONFIG_OTHER=a", "BARE"}
	if got := absolutePaths("/here", env); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := absolutePaths("/here", []string{"KUBECONFIG=", "TALOSCONFIG="}); !slices.Equal(got, []string{"KUBECONFIG=", "TALOSCONFIG="}) {
		t.Errorf("none became %q", got)
	}
}
