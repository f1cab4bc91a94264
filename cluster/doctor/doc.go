// Package doctor looks at a cluster for a diagnosis: unlike an observation for a plan it goes on
// where something can't be read. [LookAround] makes a [Survey].
package doctor
