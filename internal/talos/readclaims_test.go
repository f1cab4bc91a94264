package talos

import (
	"strconv"
	"testing"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/recast-sh/recast/cluster/observe"
)

// machineWith is a connection to a machine with those resources.
func machineWith(t *testing.T, rs ...resource.Resource) session {
	t.Helper()
	st := state.WrapCore(namespaced.NewState(inmem.Build))
	for _, r := range rs {
		if err := st.Create(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	return session{Client: &client.Client{COSI: st}, blank: true}
}

func TestClaimLayersInOrder(t *testing.T) {
	t.Parallel()
	var rs []resource.Resource
	var want []observe.ExtensionLayer
	for i := range 13 {
		id := strconv.Itoa(i)
		if i == 12 {
			id = "modules.dep"
		}
		r := runtime.NewExtensionStatus(runtime.NamespaceName, id)
		r.TypedSpec().Metadata.Name, r.TypedSpec().Metadata.ExtraInfo = "e"+id, "info"
		rs, want = append(rs, r), append(want, observe.ExtensionLayer{Name: "e" + id, ExtraInfo: "info"})
	}
	var got observe.Claims
	err := claimLayers(t.Context(), machineWith(t, rs...), &got)
	if diff := cmp.Diff(want, got.Layers); diff != "" || err != nil {
		t.Errorf("err = %v (-want +got):\n%s", err, diff)
	}
}

func TestClaimFactory(t *testing.T) {
	t.Parallel()
	r := runtime.NewImageFactorySchematic(runtime.NamespaceName, runtime.ImageFactorySchematicID)
	r.TypedSpec().SchematicID, r.TypedSpec().Flavor, r.TypedSpec().APIURL = "cafe", "Image Factory", "https://factory.example"
	var got, none observe.Claims
	err := claimFactory(t.Context(), machineWith(t, r), &got)
	want := &observe.FactoryClaim{SchematicID: "cafe", Flavor: "Image Factory", URL: "https://factory.example"}
	if diff := cmp.Diff(want, got.Factory); diff != "" || err != nil {
		t.Errorf("err = %v (-want +got):\n%s", err, diff)
	}
	if err := claimFactory(t.Context(), machineWith(t), &none); none.Factory != nil || err != nil {
		t.Errorf("none: %+v, %v", none.Factory, err)
	}
}

// TestClaimCmdline: of a command line only recast's own argument is kept.
func TestClaimCmdline(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]string{
		"talos.platform=metal siderolink.api=grpc://x?jointoken=s3cret recast.lock=sha256-a quiet": {"sha256-a"},
		`"recast.lock=sha256-a" recast.lock=sha256-b xrecast.lock=sha256-c`:                        {"sha256-a", "sha256-b"},
		"talos.platform=metal": nil,
	} {
		r := runtime.NewKernelCmdline()
		r.TypedSpec().Cmdline = line
		var got observe.Claims
		err := claimCmdline(t.Context(), machineWith(t, r), &got)
		if diff := cmp.Diff(observe.BootClaims{Locks: want, Cmdline: true}, got.Booted); diff != "" || err != nil {
			t.Errorf("%s: err = %v (-want +got):\n%s", line, err, diff)
		}
	}
}
