// Package strategy says by which strategies one node can be brought to its wanted state, and what prevents each.
// [Decide] takes the first possible one; a [Candidate] is the node with all that is known of it, and each obstacle
// is a method or function over it.
package strategy
