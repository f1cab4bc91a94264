package cluster

import (
	"encoding/hex"
	"fmt"
)

// Protocols by which machines use volumes of a server on the network.
const (
	ISCSI  = "iSCSI"
	NVMeoF = "NVMe-oF"
)

// ServedUser is a pod with a volume that machines reach by one of the protocols.
type ServedUser struct {
	Pod     string // "default/db-0"
	Node    string // "": it is not scheduled
	Volume  string // for people: "PersistentVolume pvc-1a2b"
	Access  string // ISCSI or NVMeoF
	Runs    bool   // it has its volumes: a container was started
	Trouble string // what its CSI driver reports; "" for nothing
}

// InitiatorFile is where a machine has its name for a protocol.
func InitiatorFile(protocol string) string {
	return map[string]string{ISCSI: "/etc/iscsi/initiatorname.iscsi", NVMeoF: "/etc/nvme/hostnqn"}[protocol]
}

// InitiatorName is the name by which a server of that protocol knows a machine of Talos: it follows from the machine-id,
// and that from the node ID in STATE (controllers/files/iqn.go and nqn.go; the UUID of the latter has the first 16
// characters of the machine-id, as bytes). "": it is not known.
func InitiatorName(protocol, machineID string) string {
	if len(machineID) < 16 {
		return ""
	}
	if protocol == ISCSI {
		return "iqn.2017-11.dev.talos:" + machineID
	}
	id := hex.EncodeToString([]byte(machineID[:16]))
	return fmt.Sprintf("nqn.2017-11.dev.talos:uuid:%s-%s-%s-%s-%s", id[:8], id[8:12], id[12:16], id[16:20], id[20:])
}
