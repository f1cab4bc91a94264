package adminconfig

import (
	"net/netip"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/must"
)

// configOf makes a machine configuration of a new cluster.
func configOf(t *testing.T, kind machine.Type) cluster.Secret {
	t.Helper()
	in := must.Get(generate.NewInput("prod", "https://10.0.0.1:6443", "1.35.4"))(t)
	cfg := must.Get(in.Config(kind))(t)
	text := must.Get(cfg.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled)))(t)
	return text
}

// TestOf: the files of a cluster are recognized, and those of another one are not. That servers
// accept them shows wherever a lab is bootstrapped.
func TestOf(t *testing.T) {
	t.Parallel()
	of := func() Config {
		t.Helper()
		c := must.Get(Of("prod", configOf(t, machine.TypeControlPlane), []netip.Addr{netip.MustParseAddr("10.0.0.1")}))(t)
		return c
	}
	ours, others := of(), of()
	for is, what := range map[*Config]bool{&ours: true, &others: false} {
		talos, errTalos := ours.IsTalosconfig(is.Talosconfig)
		kubernetes, errKubernetes := ours.IsKubeconfig(is.Kubeconfig)
		must.Hold(t, talos == what && kubernetes == what && errTalos == nil && errKubernetes == nil,
			"%v %v, %v %v, want %v", talos, errTalos, kubernetes, errKubernetes, what)
	}
	if is, err := ours.IsKubeconfig([]byte("{}")); is || err != nil {
		t.Errorf("an empty kubeconfig: %v, %v", is, err)
	}
}

func TestOfWorker(t *testing.T) {
	t.Parallel()
	if _, err := Of("prod", configOf(t, machine.TypeWorker), nil); err == nil {
		t.Error("a worker has no key to make them with")
	}
}
