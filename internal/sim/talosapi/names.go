package talosapi

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// machineID is what Talos makes of a node's identity: another one with each new STATE (ConvertMachineID in
// adapters/cluster/identity.go, which takes the first bytes of an ID; the lab's may begin alike).
func machineID(nodeID string) string {
	sum := sha256.Sum256([]byte(nodeID))
	return hex.EncodeToString(sum[:16])
}

// addNames adds the files with the names that follow from a machine-id: node_identity.go, iqn.go and nqn.go in
// Talos' controllers.
func (t nodeFiles) addNames(id string) {
	hex := hex.EncodeToString([]byte(id[:16]))
	host := fmt.Sprintf("%s-%s-%s-%s-%s", hex[:8], hex[8:12], hex[12:16], hex[16:20], hex[20:])
	for name, content := range map[string]string{
		"/etc/machine-id": id, "/etc/iscsi/initiatorname.iscsi": "InitiatorName=iqn.2017-11.dev.talos:" + id + "\n",
		"/etc/nvme/hostid": host, "/etc/nvme/hostnqn": "nqn.2017-11.dev.talos:uuid:" + host,
	} {
		t[name] = nodeFile{mode: 0o600, data: []byte(content)}
		t.addDirectories(name)
	}
}
