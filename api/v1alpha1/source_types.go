package v1alpha1

// Source is where the files are.
//
// +kubebuilder:validation:XValidation:rule="[has(self.configMap), has(self.git), has(self.oci)].filter(x, x).size() == 1",message="give exactly one of configMap, git and oci"
type Source struct {
	// +optional
	ConfigMap *ConfigMapSource `json:"configMap,omitempty"`
	// +optional
	Git *GitSource `json:"git,omitempty"`
	// +optional
	OCI *OCISource `json:"oci,omitempty"`
}

// ConfigMapSource is a ConfigMap of the same namespace. A key is the name of a file; in place of
// a slash it has two underscores: schematics__base.yaml is schematics/base.yaml.
type ConfigMapSource struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('recast-cluster-') && !self.startsWith('recast-roll-')",message="name: recast-cluster-… and recast-roll-… are ConfigMaps of the operator's"
	Name string `json:"name"`
}

// GitSource is a Git repository.
type GitSource struct {
	// https://… or ssh://…
	//
	// +kubebuilder:validation:Pattern=`^(https?|ssh)://.+$`
	URL string `json:"url"`
	// Branch, tag or full commit hash.
	//
	// +optional
	// +kubebuilder:default=main
	Ref string `json:"ref,omitempty"`
	// Directory that has recast.yaml.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.contains('..')",message="path: is relative to the repository, without .."
	// +kubebuilder:validation:MaxLength=1024
	Path string `json:"path,omitempty"`
	// Secret with username and password, or identity and known_hosts, as Flux takes them.
	//
	// +optional
	SecretName string `json:"secretName,omitempty"`
}

// OCISource is an OCI artifact whose layer is a tar archive, as flux push artifact makes them.
type OCISource struct {
	// Repository with a tag or a digest: ghcr.io/acme/clusters/a:latest
	//
	// +kubebuilder:validation:MinLength=1
	Reference string `json:"reference"`
	// Directory in the archive that has recast.yaml.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.contains('..')",message="path: is relative to the archive, without .."
	// +kubebuilder:validation:MaxLength=1024
	Path string `json:"path,omitempty"`
	// Secret of type kubernetes.io/dockerconfigjson. recast uses it for its own registries, too.
	//
	// +optional
	SecretName string `json:"secretName,omitempty"`
	// A registry without TLS, such as one inside of the cluster.
	//
	// +optional
	Insecure bool `json:"insecure,omitempty"`
}

// SecretKey is a key of a Secret of the same namespace.
type SecretKey struct {
	// Name of the Secret.
	//
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// +optional
	// +kubebuilder:validation:MinLength=1
	Key string `json:"key,omitempty"`
}

// Secrets are what recast needs to reach the servers of a cluster.
type Secrets struct {
	// Proxmox API token, user@realm!id=uuid. Default of key: token.
	ProxmoxToken SecretKey `json:"proxmoxToken"`
	// talosconfig with the role os:admin. Default of key: talosconfig.
	Talosconfig SecretKey `json:"talosconfig"`
	// kubeconfig of the cluster. Default of key: kubeconfig (or value, as Cluster API writes them, if you name it).
	Kubeconfig SecretKey `json:"kubeconfig"`
	// age key for files that sops has encrypted. Default of key: age.agekey.
	//
	// +optional
	AgeKey *SecretKey `json:"ageKey,omitempty"`
	// Files beside recast.yaml that are no part of the source, such as machine configurations.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	Files []SecretFile `json:"files,omitempty"`
	// Name of a Secret whose keys are environment variables: what hooks and notices need.
	//
	// +optional
	EnvFrom string `json:"envFrom,omitempty"`
}

// SecretFile is a file that a Secret has.
type SecretFile struct {
	SecretKey `json:",inline"`
	// Where it is put, relative to recast.yaml.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.contains('..')",message="path: is relative to recast.yaml, without .."
	// +kubebuilder:validation:XValidation:rule="!self.matches('^(./)*recast[.](yaml|lock)$')",message="path: recast.yaml and recast.lock come from the source"
	Path string `json:"path"`
}
