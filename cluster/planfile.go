package cluster

// PlanVersion is the format of a plan as JSON.
const PlanVersion = 1
