from .adopt import adopt as adopt
