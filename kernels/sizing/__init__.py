"""What memory and time a model needs: from its fields, layer by layer, in exact integers of bytes."""
