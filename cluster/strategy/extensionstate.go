package strategy

import (
	"github.com/recast-sh/recast/cluster"
)

// extensionState is where official extensions keep what nobody can make again: who the node is in a network of its own
// (each FILE.yaml in siderolabs/extensions, network/NAME/NAME.yaml). The other directories below /var that extensions
// write to, of soci-snapshotter, stargz-snapshotter, nvidia-fabricmanager, cachefilesd, iscsi-tools, nfs-utils and zfs,
// have caches, logs, and what the node's mounts make again.
var extensionState = map[string]struct{ path, what string }{
	"tailscale": {"/var/lib/tailscale", "its node key and login"},
	"zerotier":  {"/var/lib/zerotier-one", "its identity"},
	"netbird":   {"/var/lib/netbird", "its key and login"},
}

// extensionData is what the running system's extensions keep below /var.
func extensionData(m cluster.Machine) (data []cluster.LocalData) {
	for _, e := range m.Extensions {
		if state, keeps := extensionState[e.Name]; keeps {
			data = append(data, cluster.LocalData{Name: "extension/" + e.Name, What: "state of extension " + e.Name + " (" + state.what + ", " + state.path + ")", Path: state.path})
		}
	}
	return data
}
