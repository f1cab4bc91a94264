package cluster

import "testing"

func TestInitiatorName(t *testing.T) {
	t.Parallel()
	const id = "4c4c4544004f5a10805ac7c04f4a3233"
	for protocol, want := range map[string]string{
		ISCSI:  "iqn.2017-11.dev.talos:" + id,
		NVMeoF: "nqn.2017-11.dev.talos:uuid:34633463-3435-3434-3030-346635613130",
	} {
		if got := InitiatorName(protocol, id); got != want {
			t.Errorf("%s: %s", protocol, got)
		}
	}
	if got := InitiatorName(ISCSI, ""); got != "" {
		t.Errorf("of an unknown machine: %s", got)
	}
}
