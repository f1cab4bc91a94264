// Package strategy says by which strategies one node can be brought to its wanted state, and
// what stands in the way of each. [Decide] takes the first that is possible; a [Candidate] is
// the node with all that is known of it, and each obstacle is a method or function over it.
package strategy
