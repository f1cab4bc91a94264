package cluster

// Batch is a part of a plan that ends before the next begins: its nodes in their
// order, each as soon as the limit and its slots allow.
type Batch struct {
	Phase  Phase    `json:"phase"`
	Nodes  []string `json:"nodes"`
	Limit  int      `json:"limit"`            // how many of them are out at a time
	Beside bool     `json:"beside,omitempty"` // rolled at the same time as the batch before it
}
