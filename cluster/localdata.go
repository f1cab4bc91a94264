package cluster

// LocalData is data that lives on one node only. Data that may be in several
// places is listed once for each, under one name.
type LocalData struct {
	Name string // what acceptLoss takes: "pv/pvc-1a2b", "hostpath/var/lib/app", "longhorn/var/lib/longhorn", "linstor/pool1"
	What string // for people: "PersistentVolume pvc-1a2b (claim default/db-0)"
	Path string // on the node; "" for a volume of LVM or ZFS, or where nothing tells

	Format string // of the pool that it is in: FormatLVM or FormatZFS; "" for a file or directory, or where nothing tells
	Group  string // name of that volume group or pool; "" where nothing tells
	Handle string // of a volume of Proxmox, by its CSI driver: it is on no node for good

	Lift    string // what moves it to other nodes, in words; "" where nothing does
	Command string // for kubectl, which begins that; "" for none
}
