package cluster

const (
	ControlPlane = "control-plane"
	Worker       = "worker"
)

func JoinOptions(volid, options string) string {
	if options == "" {
		return volid
	}
	return volid + "," + options
}
