package ui

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/recast-sh/recast/cluster/observe"
)

func TestWriteProvenance(t *testing.T) {
	t.Parallel()
	p := observe.Provenance{
		Node: "wk1", VM: `VM 9031 "wk1" on pve1`, Address: netip.MustParseAddr("127.42.7.31"), Origin: observe.FromLock, Build: "b1", Wanted: "b1",
		Summary: []string{"contradicted: files: what the node shows does not fit together", "it claims the build that recast.lock wants"},
		Links: []observe.ProvenanceLink{
			{Name: "lock", Certainty: observe.Proven, Text: "recast.lock wants schematic storage", Details: []string{"schematic ID cafe", "installer registry.example/x@sha256:11"}},
			{Name: "schematic", Certainty: observe.Claimed, Text: "the image says that it was built by \x1b[31mImage Factory"},
			{Name: "cmdline", Certainty: observe.Unknown, Text: "the kernel's command line has no recast.lock"},
			{Name: "files", Certainty: observe.Contradicted, Text: "1 files of its extensions are not those of the images", Details: []string{"/usr/local/a of extension tool v1: sha256:aa → sha256:bb"}},
		},
	}
	drawn(t, "provenance", func(b *bytes.Buffer) error { return WriteProvenance(b, "text", p) })
	var out bytes.Buffer
	if err := WriteProvenance(&out, "json", p); err != nil {
		t.Fatal(err)
	}
	var back observe.Provenance
	if err := json.Unmarshal(out.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p, back, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
}
