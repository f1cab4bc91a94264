// Package jail turns a process in new namespaces into a container's program: it makes
// the container's file system, takes its identity and executes the program.
package jail

// Spec is a container as its first process needs to know it.
type Spec struct {
	// Join is 0 or the first process of a running container, in which the program is to run
	// besides. The fields up to Hostname are for new containers.
	Join int `json:"join,omitempty"`

	// Root is an empty directory, which becomes the root of its file system.
	Root string `json:"root"`
	// Mounts are made in this order.
	Mounts []Mount `json:"mounts"`
	// EmptyDirs are directories in the root that everybody may write to.
	EmptyDirs []string `json:"emptyDirs,omitempty"`
	// ReadOnlyRoot makes everything read-only but what is mounted.
	ReadOnlyRoot  bool     `json:"readOnlyRoot"`
	MaskedPaths   []string `json:"maskedPaths,omitempty"`
	ReadOnlyPaths []string `json:"readOnlyPaths,omitempty"`

	Hostname string   `json:"hostname"`
	Args     []string `json:"args"`
	Env      []string `json:"env"`
	Dir      string   `json:"dir"`

	UID    int   `json:"uid"`
	GID    int   `json:"gid"`
	Groups []int `json:"groups,omitempty"`
	// Capabilities are those that root keeps, such as CAP_CHOWN. Others than root have
	// none.
	Capabilities    []string `json:"capabilities,omitempty"`
	NoNewPrivileges bool     `json:"noNewPrivileges"`
}

// Mount is a file or directory of the machine in the container.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly"`
}
